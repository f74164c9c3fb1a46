"""The time of a run that another tool has logged, in the form that the ledger takes.

A log does not have a row for every step. A logged step stands for all steps since the previous logged one, each as long
as itself; an evaluation, checkpoint or compilation is a separate span; the time between is `unknown`. If a log has the
times of its steps but not their durations, its usual pace counts: the time beyond it is unknown too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.compare.quantity import PHASE, STEP
from stepscope.analysis.cost.ledger import JITTER, PHASES, RARE, Attempt
from stepscope.core.ring import NO_STEP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.core.arrays import Floats, Integers


UNKNOWN = "unknown"
FEWEST = 8
"""Logged steps from which a log has a usual pace."""
GAP = 10.0
"""Multiple of the usual distance between logged steps beyond which a part of the log is missing."""
OUT_OF_PACE = 1.5
"""Multiple of the usual pace beyond which something else happened between two logged steps."""
EVALUATED = re.compile(r"(^|[/_.])(eval|evaluation|val|valid|validation|test)([/_.]\w+)?[/_.]runtime$")
"""Names of the seconds that an evaluation took, as trainers log it."""
TRAINED = re.compile(r"(^|[/_.])train[/_.]runtime$")
"""Names of the seconds that the whole training took."""


@dataclass(frozen=True)
class Logged:
    """One metric of a log."""

    step: Integers
    """Step; `NO_STEP` for a row without a step."""
    time: Floats
    """Seconds since 1970; NaN if unknown."""
    value: Floats


@dataclass(frozen=True)
class _Rows:
    """Spans of time: the step and time at which each ended, its length, and how it was spent."""

    step: Integers
    end: Floats
    seconds: Floats
    phases: dict[str, Floats]


def wanted(name: str) -> bool:
    """Return whether a metric gives times."""
    return name == STEP or name.startswith(PHASE) or bool(EVALUATED.search(name) or TRAINED.search(name))


def attempt_of_log(
    series: Mapping[str, Logged], span: tuple[float, float], number: int = 0, rank: int = 0, state: str = "finished"
) -> Attempt:
    """Return the attempt of one rank from its log.

    Args:
        series: its metrics that are `wanted`; without the seconds of steps, one metric that was logged at steps.
        span: time of its first and its last row, in seconds since 1970.
        number: of the attempt.
        rank: its rank.
        state: how it ended.
    """
    steps, apart = _steps(series), _apart(series)
    rows = _placed(steps, apart, span[0])
    trained = [one.value[np.isfinite(one.value)] for name, one in series.items() if TRAINED.search(name)]
    whole = max((float(value.max()) for value in trained if len(value)), default=0.0)
    timed = span[1] > span[0]
    began = span[0]
    if timed and len(steps.end) and np.isfinite(steps.end).any():
        began = min(began, float(np.nanmin(steps.end - steps.seconds)))
    ended = max([span[1], span[0] + (0.0 if timed else whole), *rows.end.tolist()])
    return Attempt(number, rank, began, ended, state, rows.end, rows.seconds, rows.step, rows.phases, (), UNKNOWN)


def _steps(series: Mapping[str, Logged]) -> _Rows:
    """Return the logged steps, each with those since the one before."""
    if STEP not in series:
        return _paced(series)
    step, time, value = _ordered(series[STEP])
    many = steps_since(step)
    phases = {}
    for name, one in series.items():
        kind = name.removeprefix(PHASE)
        if name.startswith(PHASE) and PHASES.get(kind) not in RARE:
            there, _, spent = _ordered(one)
            column = np.full(len(step), np.nan)
            _, here, from_ = np.intersect1d(step, there, return_indices=True)
            column[here] = spent[from_] * many[here]
            phases[kind] = column
    return _Rows(step, time, value * many, phases)


def _ordered(one: Logged) -> tuple[Integers, Floats, Floats]:
    """Return the rows of a metric in order of their steps, of each step the last; without steps they are counted."""
    step = one.step if (one.step != NO_STEP).any() else np.arange(len(one.step))
    kept = np.isfinite(one.value) & (step != NO_STEP) & (one.value >= 0)
    order = np.flatnonzero(kept)[np.argsort(step[kept], kind="stable")]
    last = order[np.append(np.diff(step[order]) != 0, True)] if len(order) else order
    return step[last], one.time[last], one.value[last]


def steps_since(step: Integers) -> Floats:
    """Return how many steps there are since the previous logged one; for the first the usual number, if possible."""
    if not len(step):
        return np.empty(0)
    gaps = np.diff(step).astype(np.float64)
    usual = float(np.median(gaps)) if len(gaps) else 1.0
    gaps = np.where(gaps > GAP * usual, usual, gaps)
    return np.append(max(1.0, min(usual, float(step[0]) + 1.0)), gaps)


def _paced(series: Mapping[str, Logged]) -> _Rows:
    """Return the steps of a log with times but no durations, from its usual pace."""
    nothing = _Rows(np.empty(0, np.int64), np.empty(0), np.empty(0), {})
    others = [one for name, one in series.items() if not wanted(name)]
    if not others:
        return nothing
    densest = max(others, key=lambda one: len(one.value))
    kept = np.isfinite(densest.time) & (densest.step != NO_STEP)
    step, place = np.unique(densest.step[kept], return_index=True)
    time = np.maximum.accumulate(densest.time[kept][place]) if len(place) else np.empty(0)
    if len(step) < FEWEST or time[-1] <= time[0]:
        return nothing
    many, took = np.diff(step).astype(np.float64), np.diff(time)
    pace = float(np.median(took / many))
    seconds = np.where(took > OUT_OF_PACE * pace * many, pace * many, took)
    return _Rows(step[1:], time[1:], seconds, {})


def _rare(name: str) -> str:
    """Return the class of a metric of evaluations, checkpoints or compilations; empty for any other."""
    if EVALUATED.search(name):
        return "evaluation"
    kind = PHASES.get(name.removeprefix(PHASE), "") if name.startswith(PHASE) else ""
    return kind if kind in RARE else ""


def _apart(series: Mapping[str, Logged]) -> _Rows:
    """Return the evaluations, checkpoints and compilations; those of one kind, step and time together."""
    found: dict[tuple[str, int, float], float] = {}
    for name, one in series.items():
        kind = _rare(name)
        if not kind:
            continue
        for step, time, value in zip(one.step.tolist(), one.time.tolist(), one.value.tolist(), strict=True):
            if np.isfinite(value) and value > 0:
                key = kind, step, time if np.isfinite(time) else -1.0
                found[key] = found.get(key, 0.0) + value
    seconds = np.array(list(found.values()))
    end = np.array([time if time >= 0 else np.nan for _, _, time in found])
    kinds = sorted({kind for kind, _, _ in found})
    phases = {kind: np.array([found[key] if key[0] == kind else np.nan for key in found]) for kind in kinds}
    return _Rows(np.array([step for _, step, _ in found], np.int64), end, seconds, phases)


def _placed(steps: _Rows, apart: _Rows, began: float) -> _Rows:
    """Return all spans with the end of each: as logged, else one after the other from the beginning."""
    both = [steps, apart]
    phases = {
        name: np.concatenate([rows.phases.get(name, np.full(len(rows.end), np.nan)) for rows in both])
        for name in sorted({*steps.phases, *apart.phases})
    }
    seconds = np.concatenate([steps.seconds, apart.seconds])
    step = np.concatenate([steps.step, apart.step])
    end = np.concatenate([steps.end, apart.end])
    if np.isfinite(steps.end).all() and (len(steps.end) or np.isfinite(apart.end).all()):
        for place, (at, lasted) in enumerate(zip(apart.end, apart.seconds, strict=True), len(steps.end)):
            if np.isfinite(at):  # logged with a step: the step was over before
                end[: len(steps.end)][np.abs(steps.end - at) < JITTER] -= lasted
            else:
                later = int(np.searchsorted(steps.step, apart.step[place - len(steps.end)]))
                end[place] = steps.end[min(later, len(steps.end) - 1)] + lasted
    else:
        order = np.lexsort((np.arange(len(step)), step))
        end[order] = began + np.cumsum(seconds[order])
    own = np.concatenate([steps.step, np.full(len(apart.step), NO_STEP)])
    return _Rows(own, end, seconds, phases)
