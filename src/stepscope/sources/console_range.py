"""A part of a console, as people name it: from a step or a time, to a step or a time."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import TYPE_CHECKING

from stepscope.core.errors import UsageError

if TYPE_CHECKING:
    from stepscope.store.reader import Past

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
FORMS = "write a step such as 120, an age such as 10m, or a time such as 2026-11-18T22:10:00"
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def moment_of(past: Past, text: str, *, is_end: bool, now: float | None = None) -> float:
    """Return the time (seconds since 1970 UTC) that a text names, for the start or the end of a range.

    A number is a step of the run: it lasts from the end of the step before to its own end, on the rank that was first
    or last there. `10m` is ten minutes before `now`; a time without a zone is local.

    Raises:
        UsageError: it is none of these, or the run has no such step.
    """
    if text.isdecimal() and text.isascii() and len(text) < 16:
        return _edge_of_step(past, int(text), is_end=is_end)
    age = _AGE.fullmatch(text)
    if age is not None:
        return (time.time() if now is None else now) - float(age[1]) * UNITS[age[2]]
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone().timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageError(f"read lines from or to {text!r}", "that is no step and no time", FORMS) from error


def _edge_of_step(past: Past, step: int, *, is_end: bool) -> float:
    """Return when a step began on the first rank, or ended on the last."""
    if "step_seconds" not in past.names():
        raise UsageError(f"find step {step}", f"run {past.id} has no steps", "give a time instead")
    found = past.series("step_seconds", step_range=(step, step))
    if not len(found.time):
        raise UsageError(f"find step {step}", f"run {past.id} has no such step", "`stepscope show` says how many")
    return float(found.time.max() if is_end else (found.time - found.value).min())
