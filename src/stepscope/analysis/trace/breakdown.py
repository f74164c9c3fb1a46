"""Where the device's time went: idle, compute, copies, communication, by interval union at full resolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.analysis.finding import INFO, WARNING, Finding
from stepscope.analysis.trace.roles import COMMUNICATION, COMPUTE, COPY
from stepscope.analysis.trace.window import Intervals, TraceWindow, clip, together, total, union

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stepscope.core.arrays import Mask
    from stepscope.core.trace import Trace

SHARES = ("idle", "compute", "communication", "exposed_communication", "memcpy", "exposed_memcpy")
LEAST, LEAST_EXPOSED = 0.05, 0.1
"""Share of the window from which copies, and communication, that nothing hides are reported."""
MUCH = 0.2
"""Share of the window from which a loss is a warning."""
UNHIDDEN = 0.005
"""Share of communication overlapped with computation that counts as none."""


@dataclass(frozen=True)
class Breakdown:
    """The time of one window, in ns. Each class is the union of its events on all streams: classes may overlap."""

    window: TraceWindow
    busy: int
    """Any device event."""
    compute: int
    """Kernels that do not communicate."""
    communication: int
    memcpy: int
    """Copies and fills."""
    exposed_communication: int
    """Communication while no kernel computes."""
    exposed_memcpy: int
    """Copies and fills while nothing else runs."""

    @property
    def idle(self) -> int:
        """Time in which no device event runs."""
        return self.window.length - self.busy

    def facts(self) -> dict[str, float | None]:
        """Return the shares of the window in percent; `overlap_percent` is the share of communication under compute.

        None if there is no device event, or no communication to overlap.
        """
        length = self.window.length if self.busy else 0
        hidden = self.communication - self.exposed_communication
        return {
            **{f"{name}_percent": 100 * getattr(self, name) / length if length else None for name in SHARES},
            "overlap_percent": 100 * hidden / self.communication if self.communication else None,
        }


def breakdown(trace: Trace, window: TraceWindow, roles: NDArray[np.int8]) -> Breakdown:
    """Return the breakdown of a window, given the roles of all events (`roles.roles`)."""
    compute, communication, copies = (
        clip(time_of(trace, roles == role), window) for role in (COMPUTE, COMMUNICATION, COPY)
    )
    working = together(compute, communication)
    busy = together(working, copies)
    return Breakdown(
        window=window,
        busy=total(busy),
        compute=total(compute),
        communication=total(communication),
        memcpy=total(copies),
        exposed_communication=total(working) - total(compute),
        exposed_memcpy=total(busy) - total(working),
    )


def time_of(trace: Trace, chosen: Mask) -> Intervals:
    """Return the time that some events cover."""
    return union(trace.start[chosen], trace.end[chosen])


def busy_time(trace: Trace) -> Intervals:
    """Return the time in which the device is at work."""
    return time_of(trace, trace.on_device)


def severity(share: float) -> str:
    """Return how bad it is to lose a share of the window."""
    return WARNING if share >= MUCH else INFO


def findings(parts: Breakdown) -> list[Finding]:
    """Report communication and copies that are not hidden behind other work."""
    length, found = max(parts.window.length, 1), []
    share = parts.exposed_communication / length
    if share >= LEAST_EXPOSED:
        took, hidden = parts.communication / length, 1 - parts.exposed_communication / parts.communication
        text = f"communication takes {100 * took:.1f} % of the time, "
        if hidden < UNHIDDEN:
            text += "and nothing is computed meanwhile"
        else:
            text += f"{100 * share:.1f} % with nothing computed meanwhile ({100 * hidden:.0f} % of it is hidden)"
        evidence = {"communication_ratio": took, "exposed_ratio": share, "overlap_ratio": hidden}
        remedy = "overlap it with compute (bucketing, prefetch), send less (compression), or find the slow rank"
        found.append(Finding("exposed_communication", text, severity(share), remedy, evidence, share))
    share = parts.exposed_memcpy / length
    if share >= LEAST:
        text = f"copies and fills take {100 * share:.1f} % of the time with nothing else running"
        remedy = "pin host memory and copy with non_blocking=True on a separate stream, or keep the data on the device"
        found.append(Finding("exposed_copies", text, severity(share), remedy, {"exposed_ratio": share}, share))
    return found
