"""How much of a step is spent waiting for data, and whether that limits the training."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.finding import INFO, WARNING, Finding
from stepscope.analysis.trace.breakdown import time_of
from stepscope.analysis.trace.window import (
    HOST,
    STEPS,
    Intervals,
    clip,
    common,
    named_like,
    span_of,
    steps,
    total,
    union,
)
from stepscope.core.remedies import remedy
from stepscope.core.trace import FIRST_DEVICE, OPERATOR, PYTHON

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

LOADING = re.compile(
    r"^enumerate\(DataLoader\)|dataloader[^/]*(?:\.__next__|_next\b)|^#*\s*(?:data_?load(?:er|ing)?|get_batch|next_batch)\b"
    r"|^\[pl\].*(?:dataloader|fetch|prefetch).*next|torch/utils/data/dataloader\.py\(\d+\): __next__"
    r"|(?:Dataset|DataPipe|IterDataPipe|grain|MultiDeviceIterator)[^/]*(?:::|\.)(?:__next__|get_next)",
    re.IGNORECASE,
)
"""Ranges of the host in which the training thread waits for its next batch."""
BOUND_PERCENT = 10.0
"""Share of the step from which data limits it (kineto-resnet50: 39.6 % with no worker, 1.0 % with four)."""
IDLE = 0.1
"""Share of idle time from which a run that does not wait for data counts as waiting for something else."""


@dataclass(frozen=True)
class Loading:
    """Waiting for data, as a share of the time of the steps."""

    share: float | None
    """0 to 1; None if the trace has no host events."""
    over: str
    """What it is a share of: profiler_steps, or host_events if no step is recorded."""
    waits: Intervals
    count: int
    """How often a batch was waited for."""
    by_workers: bool | None = None
    """Whether worker processes make the batches, by the name of the event that waits for them; None if unknown."""

    @property
    def percent(self) -> float | None:
        """The share in percent."""
        return None if self.share is None else 100 * self.share


def loading(trace: Trace) -> Loading:
    """Return how much of the steps is spent waiting for data; of all host time if the trace has no steps."""
    chosen = named_like(trace, LOADING, trace.kind <= PYTHON)
    waits = time_of(trace, chosen)
    names = [trace.names[code] for code in np.unique(trace.name[chosen]).tolist()]
    by_workers: bool | None = any("MultiProcess" in name for name in names)
    if not by_workers and not any("SingleProcess" in name for name in names):
        by_workers = None
    if found := steps(trace):
        times = union(*(np.array([getattr(step, key) for step in found], np.int64) for key in ("start", "end")))
        over, waited, length = STEPS, total(common(waits, times)), sum(step.end - step.start for step in found)
    else:
        working = (trace.kind < FIRST_DEVICE) & (trace.kind >= OPERATOR)
        if not working.any():
            return Loading(None, HOST, waits, 0)
        window = span_of(HOST, trace.start[working], trace.end[working])
        over, waited, length = HOST, total(clip(waits, window)), window.length
    return Loading(waited / length if length else None, over, waits, int(chosen.sum()), by_workers)


def findings(data: Loading, idle_share: float | None, idle_for_data: float | None) -> list[Finding]:
    """Report whether the input limits the training.

    Given the shares of the window in which the device is idle, and idle while data is loaded; None without a device.
    """
    if data.share is None or data.percent is None:
        return []
    evidence = {
        "dataloader_ratio": data.share,
        "of": data.over,
        "waits": data.count,
        "idle_ratio": idle_share,
        "idle_for_data_ratio": idle_for_data,
    }
    unit = "step" if data.over == STEPS else "recorded host time"
    if data.percent < BOUND_PERCENT:
        text = f"not input-bound: waiting for data takes {data.percent:.1f} % of the {unit}"
        if idle_share is not None and idle_share >= IDLE:
            text += f"; the device is idle {100 * idle_share:.0f} % of the time for other reasons"
        return [Finding("not_input_bound", text, INFO, evidence=evidence)]
    text = f"waiting for data takes {data.percent:.1f} % of the {unit}"
    if idle_for_data is not None and idle_for_data < data.share / 4:
        text += ", but the device mostly works meanwhile"
        return [Finding("data_wait_hidden", text, INFO, evidence=evidence)]
    text = f"input-bound: {text}"
    if idle_for_data is not None:
        text += f"; the device is idle for it {100 * idle_for_data:.1f} % of the time"
    cause = "" if data.by_workers is None else "slow_workers" if data.by_workers else "no_workers"
    return [Finding("input_bound", text, WARNING, remedy("input_bound", cause), evidence, data.share)]
