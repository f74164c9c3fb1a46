"""Where the device's time went: idle, compute, copies, communication, by interval union at full resolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.analysis.trace.roles import COMMUNICATION, COMPUTE, COPY
from stepscope.analysis.trace.window import Intervals, TraceWindow, clip, common, together, total, union

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stepscope.core.arrays import Mask
    from stepscope.core.trace import Trace


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

        None where there is nothing to take a share of: no device event, or no communication.
        """
        hidden = self.communication - self.exposed_communication
        return {
            "idle_percent": self._percent(self.idle),
            "compute_percent": self._percent(self.compute),
            "communication_percent": self._percent(self.communication),
            "exposed_communication_percent": self._percent(self.exposed_communication),
            "memcpy_percent": self._percent(self.memcpy),
            "exposed_memcpy_percent": self._percent(self.exposed_memcpy),
            "overlap_percent": 100 * hidden / self.communication if self.communication else None,
        }

    def _percent(self, part: int) -> float | None:
        return 100 * part / self.window.length if self.window.length and self.busy else None


def breakdown(trace: Trace, window: TraceWindow, roles: NDArray[np.int8]) -> Breakdown:
    """Return the breakdown of a window.

    Args:
        trace: the trace.
        window: what part of it.
        roles: of its events (`trace_roles.roles`).
    """
    compute, communication, copies = (clip(time_of(trace, roles == role), window) for role in ROLES)
    talking, computing = total(communication), total(compute)
    working = together(compute, communication)
    busy = together(working, copies)
    return Breakdown(
        window=window,
        busy=total(busy),
        compute=computing,
        communication=talking,
        memcpy=total(copies),
        exposed_communication=total(working) - computing,
        exposed_memcpy=total(busy) - total(working),
    )


ROLES = (COMPUTE, COMMUNICATION, COPY)


def time_of(trace: Trace, chosen: Mask) -> Intervals:
    """Return the time that some events cover."""
    return union(trace.start[chosen], trace.end[chosen])


def busy_time(trace: Trace) -> Intervals:
    """Return the time in which the device is at work."""
    return time_of(trace, trace.on_device)


def by_step(trace: Trace, roles: NDArray[np.int8], windows: list[TraceWindow]) -> list[dict[str, Any]]:
    """Return the breakdown of each of some windows, such as the profiler's steps, as plain values."""
    return [{**window.facts(trace.origin), **breakdown(trace, window, roles).facts()} for window in windows]


def shared(one: Intervals, other: Intervals) -> int:
    """Return the ns that both cover."""
    return total(common(one, other))
