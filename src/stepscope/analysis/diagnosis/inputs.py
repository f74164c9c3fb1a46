"""Waiting for data, and its cause: loading in the trainer itself, too few workers, transforms, collating, the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepscope.analysis.diagnosis.composition import BURST, LEAST_BURST
from stepscope.analysis.diagnosis.rhythm import EVERY_OTHER, even
from stepscope.analysis.diagnosis.tell import slow, time
from stepscope.core.numbers import format_share

if TYPE_CHECKING:
    from stepscope.analysis.diagnosis.evidence import Evidence
    from stepscope.analysis.diagnosis.tell import Case
    from stepscope.analysis.finding import Finding

DISK = 0.3
"""Share of the time spent waiting for a disk from which the disk is the cause."""
MOST_OF_IT = 0.5
STARTS = 0.6
"""Minimum share of the waiting in the first steps of epochs to blame the start of workers."""
SPARE = 1.2
KEEPS_UP, UNDISTURBED = 0.7, 0.25
"""Maximum share of a step's compute time that a worker's part of a batch may take to keep up; and the quantile of its
time that counts as undisturbed."""
MOST_WORKERS, MOST_AT_FIRST = 64, 8
"""Most workers to recommend, and the number for a loader without workers."""
UNKNOWN_LOAD, WAITING_LOAD = 2, 4
"""Workers per processor: if their work is unknown, and if they wait for a disk or a network."""
IDLE = 0.5
"""Share of a rank's processors below which the rank and its workers wait for something other than processors."""


class _Why(NamedTuple):
    """Why data comes late."""

    cause: str
    text: str
    facts: dict[str, Any]
    fields: dict[str, Any]


def input_bound(case: Case, threshold: float) -> Finding | None:
    """Return the finding that a run waits for data; None if its workers wait for a busy machine."""
    if case.made.disturbed > 0 and _keep_up(case) and _starts(case) < STARTS * case.steps.spent("data"):
        return None
    why = _why(case)
    text = f"{format_share(case.share('data'))} of the time is spent waiting for data: "
    text += f"{time(case.each('data'))} of a step of "
    text += f"{time(case.step)}{why.text}"
    facts = {"phase": "data", "phase_seconds": case.spent("data"), **why.facts}
    condition = "if loading keeps up"
    return slow(
        *("input_bound", case, case.spent("data"), text),
        threshold=threshold,
        condition=condition,
        cause=why.cause,
        evidence=facts,
        **why.fields,
    )


def workers_of(case: Case) -> int:
    """Return how many workers the training's loader has: as recorded, or as many as were observed."""
    told = [one.get("workers") for one in case.evidence.of_kind("loader") if not one.get("evaluates")]
    known = [one for one in told if isinstance(one, int)]
    return max(known) if known else round(case.evidence.mean(f"process/{case.steps.rank}/workers") or 0.0)


def _keep_up(case: Case) -> bool:
    """Return whether the workers could keep up with the model on an otherwise idle machine."""
    workers, whole = workers_of(case), 0.0
    for name in ("load", "collate"):
        track = case.evidence.track(f"data/{name}_seconds")
        if track is not None and len(track.finite()):
            whole += float(np.quantile(track.finite().value, UNDISTURBED))
    rest = case.step - case.each("data")
    return workers > 0 and whole > 0 and whole / workers < KEEPS_UP * rest


def _usual(case: Case, name: str) -> float | None:
    """Return a worker's seconds per batch: the mean, or that of undisturbed batches if other programs interfere."""
    if case.made.disturbed <= 0:
        return case.evidence.mean(name)
    tracks = [track.finite().value for track in case.evidence.series.get(name, {}).values()]
    whole = np.concatenate(tracks) if tracks else np.empty(0)
    return float(np.quantile(whole, UNDISTURBED)) if len(whole) else None


def _why(case: Case) -> _Why:
    evidence = case.evidence
    workers = workers_of(case)
    load, collate, transform = (_usual(case, f"data/{name}_seconds") for name in ("load", "collate", "transform"))
    facts = {"workers": workers, "load_seconds": load, "collate_seconds": collate, "transform_seconds": transform}
    waiting = evidence.mean("pressure/io_some_stalled_ratio") or evidence.mean("cpu/iowait_ratio") or 0.0
    if waiting > DISK:
        facts["io_waiting_ratio"] = waiting
        return _Why("disk", f"; processes waited for disks {format_share(waiting)} of the time", facts, {})
    if load is None:
        wanted = max(1, min(MOST_AT_FIRST, processors_of_a_rank(evidence) or MOST_AT_FIRST))
        return _Why("in_process", ", loaded in the training process itself", facts, {"workers": wanted})
    starts = _starts(case)
    if starts > STARTS * case.steps.spent("data"):
        facts["start_seconds"] = starts
        return _Why("start", "; most of it at the start of epochs, while workers start", facts, {})
    whole = load + (collate or 0.0)
    if transform is not None and transform > MOST_OF_IT * whole:
        return _Why("transform", f"; {format_share(transform / whole)} of the loading time is transforms", facts, {})
    if collate is not None and collate > MOST_OF_IT * whole:
        return _Why("collate", f"; {format_share(collate / whole)} of the loading time is collating", facts, {})
    return _too_few(case, workers, whole, facts)


def _too_few(case: Case, workers: int, whole: float, facts: dict[str, Any]) -> _Why:
    """Return that the workers do not keep up, and how many would, if there are enough processors."""
    rest = max(0.0, case.step - case.each("data"))
    # On average a worker cannot take longer for a batch than all of them together need for as many steps.
    whole = min(whole, max(1, workers) * case.step)
    told = f"; its one worker needs {time(whole)} per batch"
    told = told if workers == 1 else f"; each of its {workers} workers needs {time(whole)} per batch"
    wanted = max(workers + 1, int(np.ceil(SPARE * whole / rest)) if rest > 0 else MOST_WORKERS)
    own = processors_of_a_rank(case.evidence)
    allowed = MOST_WORKERS if own is None else own * _times(case, own)
    fields = {"workers": workers, "load": time(whole), "rest": time(rest), "wanted": wanted, "processors": own}
    if wanted <= min(allowed, MOST_WORKERS):
        return _Why("workers", told, facts, fields)
    advice = "cheaper" if allowed <= workers else "more_and_cheaper"
    return _Why(advice, told, {**facts, "cause": "workers"}, fields | {"allowed": allowed})


def processors_of_a_rank(evidence: Evidence) -> int | None:
    """Return how many whole processors of its machine each rank can use, at least 1; None if unknown."""
    if not evidence.processors:
        return None
    nodes = len({rank for rank in evidence.series.get("cpu/usage_ratio", {}) if rank < 0}) or 1
    return max(1, int(evidence.processors * nodes / max(1, len(evidence.ranks))))


def _times(case: Case, own: int) -> int:
    """Return how many workers one processor feeds: one that always computes, or several that wait for data."""
    used = case.evidence.mean(f"process/{case.steps.rank}/tree_cpu_ratio")
    return UNKNOWN_LOAD if used is None else WAITING_LOAD if used < IDLE * own else 1


def _starts(case: Case) -> float:
    """Return the seconds of data at the start of epochs, when workers restart: long and periodic."""
    told = [one.get("persistent") for one in case.evidence.of_kind("loader") if one.get("workers")]
    data = case.steps.phase("data")
    if not len(data) or any(told):
        return 0.0
    long = data > BURST * max(float(np.median(data)), LEAST_BURST)
    index = case.steps.step[case.steps.measured][long].astype(np.float64)
    is_start = even(index, EVERY_OTHER) is not None and float(long.mean()) <= 0.5
    return float(data[long].sum()) * case.steps.count / len(data) if is_start else 0.0
