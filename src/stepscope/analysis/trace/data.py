"""How much of a step goes to waiting for data, and whether that is what holds the training back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.finding import INFO, WARNING, Finding
from stepscope.analysis.trace.window import (
    HOST,
    STEPS,
    Intervals,
    TraceWindow,
    clip,
    common,
    named_like,
    steps,
    total,
    union,
)
from stepscope.core.remedies import remedy
from stepscope.core.trace import FIRST_DEVICE, PYTHON

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
"""Share of the step from which on data holds it back (kineto-resnet50: 39.6 % with no worker, 1.0 % with four)."""


IDLE = 0.1
"""Share of idle time from which on a run that does not wait for data counts as waiting for something else."""


@dataclass(frozen=True)
class Loading:
    """Waiting for data, as a share of the time of the steps."""

    share: float | None
    """0 to 1; None if the trace has no host events to tell."""
    over: str
    """What it is a share of: profiler_steps, or host_events where no step is recorded."""
    waits: Intervals
    count: int
    """How often a batch was waited for."""
    by_workers: bool | None = None
    """Whether worker processes make the batches, by the name of what waits for them; None if it does not tell."""

    @property
    def percent(self) -> float | None:
        """The share in percent."""
        return None if self.share is None else 100 * self.share


def loading(trace: Trace) -> Loading:
    """Return how much of the steps is spent waiting for data; of all host time if the trace has no steps."""
    host = trace.kind < FIRST_DEVICE
    chosen = named_like(trace, LOADING, trace.kind <= PYTHON)
    waits = union(trace.start[chosen], trace.end[chosen])
    names = {trace.names[code] for code in np.unique(trace.name[chosen]).tolist()}
    by_workers = any("MultiProcess" in name for name in names)
    told = by_workers if by_workers or any("SingleProcess" in name for name in names) else None
    found = steps(trace)
    if found:
        times = union(*(np.array([getattr(step, key) for step in found], np.int64) for key in ("start", "end")))
        whole = sum(step.end - step.start for step in found)
        share = total(common(waits, times)) / whole if whole else None
        return Loading(share, STEPS, waits, int(chosen.sum()), told)
    working = host & (trace.kind >= 1)
    if not working.any():
        return Loading(None, HOST, waits, 0)
    window = TraceWindow(HOST, int(trace.start[working].min()), int(trace.end[working].max()))
    share = total(clip(waits, window)) / window.length if window.length else None
    return Loading(share, HOST, waits, int(chosen.sum()), told)


def findings(data: Loading, idle_share: float | None, idle_for_data: float | None) -> list[Finding]:
    """Return whether the training is held back by its input.

    Args:
        data: the waiting for data.
        idle_share: share of the window in which the device is idle; None without a device.
        idle_for_data: share of the window in which it is idle while data is waited for.
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
    hidden = idle_for_data is not None and idle_for_data < data.share / 4
    text = f"input-bound: waiting for data takes {data.percent:.1f} % of the {unit}"
    if hidden:
        text = f"waiting for data takes {data.percent:.1f} % of the {unit}, but the device mostly works meanwhile"
        return [Finding("data_wait_hidden", text, INFO, evidence=evidence)]
    if idle_for_data is not None:
        text += f"; the device is idle for it {100 * idle_for_data:.1f} % of the time"
    cause = "" if data.by_workers is None else "slow_workers" if data.by_workers else "no_workers"
    return [Finding("input_bound", text, WARNING, remedy("input_bound", cause), evidence, data.share)]
