"""The course of a trace for a picture: how busy each kind of work was, span by span."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.trace.breakdown import time_of
from stepscope.analysis.trace.roles import COMMUNICATION, COMPUTE, COPY, roles
from stepscope.analysis.trace.spans import covered
from stepscope.analysis.trace.window import TraceWindow, steps
from stepscope.core.trace import ANNOTATION

if TYPE_CHECKING:
    from stepscope.analysis.trace.links import Links
    from stepscope.core.trace import Trace

STRETCHES = 480
"""Spans that a window is divided into: about one per two pixels of a page."""
MOST_STEPS = 100
"""Steps above which their marks would only be a grey band."""


def timeline(
    trace: Trace, window: TraceWindow, links: Links | None = None, stretches: int = STRETCHES
) -> dict[str, Any]:
    """Return, per span of the window, the share in which each kind of work ran, from 0 to 1, and where steps lie.

    Shares are exact: no event is too short to count.
    """
    edges = np.linspace(window.start, window.end, stretches + 1).astype(np.int64)
    role = roles(trace, links)
    codes = [code for code, name in enumerate(trace.names) if "DataLoader" in name]
    lanes = {
        "compute": role == COMPUTE,
        "communication": role == COMMUNICATION,
        "copy": role == COPY,
        "data": np.isin(trace.name, codes) & (trace.kind <= ANNOTATION),
    }
    shares = {}
    for name, chosen in lanes.items():
        if chosen.any():
            done = covered(time_of(trace, chosen), edges)
            shares[name] = [round(value, 4) for value in (np.diff(done) / np.maximum(np.diff(edges), 1)).tolist()]
    marks = [step for step in steps(trace) if step.end > window.start and step.start < window.end]
    return {
        "length_us": window.length / 1000,
        "shares": shares,
        "steps": [
            {
                "number": step.number,
                "start_us": (step.start - window.start) / 1000,
                "end_us": (step.end - window.start) / 1000,
            }
            for step in marks[:MOST_STEPS]
        ],
    }
