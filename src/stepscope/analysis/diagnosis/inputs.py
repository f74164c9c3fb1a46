"""Waiting for data, and its cause: loading in the trainer, too few workers, transforms, collating, the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.diagnosis.case import time
from stepscope.analysis.diagnosis.composition import BURST, LEAST_BURST
from stepscope.analysis.diagnosis.periods import SHORTEST_IN_STEPS, period_of
from stepscope.analysis.series.robust import median
from stepscope.core.numbers import format_share

if TYPE_CHECKING:
    from stepscope.analysis.diagnosis.case import Case
    from stepscope.analysis.diagnosis.evidence import Evidence
    from stepscope.analysis.finding import Finding

DISK = 0.3
"""Share of the time spent waiting for a disk from which the disk is the cause."""
MOST_OF_IT = 0.5
STARTS = 0.6
"""Minimum share of the waiting in the first steps of epochs to blame the start of workers."""
SPARE = 1.2
KEEPS_UP, UNDISTURBED = 0.7, 0.25
"""Workers keep up if a worker's part of a batch takes at most this share of a step's compute time, at this quantile of
their batches, which counts as undisturbed."""
MOST_WORKERS, MOST_AT_FIRST = 64, 8
"""Most workers to recommend, and the number for a loader without workers."""
UNKNOWN_LOAD, WAITING_LOAD = 2, 4
"""Workers per processor: if their load is unknown, and if they wait for a disk or a network."""
IDLE = 0.5
"""A rank and its workers wait for something other than processors if they use less than this share of theirs."""


_Cause = tuple[str, str, dict[str, Any], dict[str, Any]]
"""Why data comes late: the cause, its text, the evidence, and the values in the text of the remedy."""


def input_bound(case: Case, threshold: float) -> Finding | None:
    """Return the finding that a run waits for data; None if its workers wait for a busy machine."""
    if case.made.disturbed > 0 and _keep_up(case) and _starts(case) < STARTS * case.steps.spent("data"):
        return None
    cause, why, found, fields = _cause(case)
    spent, condition = case.spent("data"), "if loading keeps up"
    text = f"{format_share(case.share('data'))} of the time is spent waiting for data: "
    text += f"{time(case.each('data'))} of a step of {time(case.step)}{why}"
    facts = {"phase": "data", "phase_seconds": spent, **found}
    return case.slow("input_bound", spent, text, facts, threshold=threshold, condition=condition, cause=cause, **fields)


def workers_of(case: Case) -> int:
    """Return how many workers the training's loader has: as recorded, or as many as were observed."""
    told = [one.get("workers") for one in case.evidence.of_kind("loader") if not one.get("evaluates")]
    known = [one for one in told if isinstance(one, int)]
    return max(known) if known else round(case.evidence.mean(f"process/{case.steps.rank}/workers") or 0.0)


def _keep_up(case: Case) -> bool:
    """Return whether the workers could keep up with the model on an otherwise idle machine."""
    workers, rest = workers_of(case), case.step - case.each("data")
    parts = [case.evidence.finite(f"data/{name}_seconds").value for name in ("load", "collate")]
    whole = sum(float(np.quantile(part, UNDISTURBED)) for part in parts if len(part))
    return workers > 0 and whole > 0 and whole / workers < KEEPS_UP * rest


def _usual(case: Case, name: str) -> float | None:
    """Return a worker's seconds per batch: the mean, or that of undisturbed batches if other programs interfere."""
    if case.made.disturbed <= 0:
        return case.evidence.mean(name)
    values = case.evidence.values(name)
    return float(np.quantile(values, UNDISTURBED)) if len(values) else None


def _cause(case: Case) -> _Cause:
    evidence = case.evidence
    workers = workers_of(case)
    load, collate, transform = (_usual(case, f"data/{name}_seconds") for name in ("load", "collate", "transform"))
    facts = {"workers": workers, "load_seconds": load, "collate_seconds": collate, "transform_seconds": transform}
    waiting = evidence.mean("pressure/io_some_stalled_ratio") or evidence.mean("cpu/iowait_ratio") or 0.0
    if waiting > DISK:
        facts["io_waiting_ratio"] = waiting
        return "disk", f"; processes waited for disks {format_share(waiting)} of the time", facts, {}
    if load is None:
        wanted = max(1, min(MOST_AT_FIRST, processors_of_a_rank(evidence) or MOST_AT_FIRST))
        return "in_process", ", loaded in the training process itself", facts, {"workers": wanted}
    starts = _starts(case)
    if starts > STARTS * case.steps.spent("data"):
        facts["start_seconds"] = starts
        return "start", "; most of it at the start of epochs, while workers start", facts, {}
    whole = load + (collate or 0.0)
    for cause, seconds, what in (("transform", transform, "transforms"), ("collate", collate, "collating")):
        if seconds is not None and seconds > MOST_OF_IT * whole:
            return cause, f"; {format_share(seconds / whole)} of the loading time is {what}", facts, {}
    return _too_few(case, workers, whole, facts)


def _too_few(case: Case, workers: int, whole: float, facts: dict[str, Any]) -> _Cause:
    """Return that the workers do not keep up, and how many would, if there are enough processors."""
    rest = max(0.0, case.step - case.each("data"))
    # On average a worker cannot take longer for a batch than all of them together need for as many steps.
    whole = min(whole, max(1, workers) * case.step)
    who = "its one worker" if workers == 1 else f"each of its {workers} workers"
    text = f"; {who} needs {time(whole)} per batch"
    wanted = max(workers + 1, int(np.ceil(SPARE * whole / rest)) if rest > 0 else MOST_WORKERS)
    own, allowed = processors_of_a_rank(case.evidence), MOST_WORKERS
    if own is not None:  # workers that always compute need a processor each; those that wait for data share one
        used = case.evidence.mean(f"process/{case.steps.rank}/tree_cpu_ratio")
        allowed = own * (UNKNOWN_LOAD if used is None else WAITING_LOAD if used < IDLE * own else 1)
    fields = {"workers": workers, "load": time(whole), "rest": time(rest), "wanted": wanted, "processors": own}
    if wanted <= min(allowed, MOST_WORKERS):
        return "workers", text, facts, fields
    advice = "cheaper" if allowed <= workers else "more_and_cheaper"
    return advice, text, {**facts, "cause": "workers"}, fields | {"allowed": allowed}


def processors_of_a_rank(evidence: Evidence) -> int | None:
    """Return how many whole processors of its machine each rank can use, at least 1; None if unknown."""
    if not evidence.processors:
        return None
    nodes = len({rank for rank in evidence.series.get("cpu/usage_ratio", {}) if rank < 0}) or 1
    return max(1, int(evidence.processors * nodes / max(1, len(evidence.ranks))))


def _starts(case: Case) -> float:
    """Return the seconds of data at the start of epochs, when workers restart: long and periodic."""
    persistent = any(one.get("persistent") for one in case.evidence.of_kind("loader") if one.get("workers"))
    data = case.steps.phase("data")
    if not len(data) or persistent:
        return 0.0
    long = data > BURST * max(median(data), LEAST_BURST)
    index = case.steps.step[case.steps.measured][long].astype(np.float64)
    is_start = period_of(index, SHORTEST_IN_STEPS) is not None and float(long.mean()) <= 0.5
    return float(data[long].sum()) * case.steps.count / len(data) if is_start else 0.0
