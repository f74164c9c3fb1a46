"""The slowest operations of a profile: the own time of each, from the profiler's raw events.

torch's own `key_averages()` builds a tree of Python objects, which stops the training for 22 s with 270 000 events. One
pass over the same events takes about a second.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HOST, DEVICE = "host", "device"
"""The clock that measured the times."""
PREFIX, MEMORY, STEP = "aten::", "[memory]", "ProfilerStep#"
"""Names of torch's events: operations start with the first, steps with the last."""
CPU = 0
"""The host in torch's enumeration of device types."""


class ProfilerEvent(NamedTuple):
    """One call of an operation on a thread of the host, one kernel or copy on a device, or a change of memory."""

    name: str
    thread: int
    start: int
    """Nanoseconds on the profiler's clock."""
    duration: int
    """Nanoseconds."""
    on_device: bool = False
    correlation: int = 0
    """Number that a kernel's `linked` refers to; 0 for none."""
    linked: int = 0
    memory: int = 0
    """Allocated bytes; negative if freed."""


@dataclass(frozen=True)
class Operation:
    """All calls of one operation."""

    name: str
    calls: int
    seconds: float
    """Own time, without the operations that it calls. On a device: time of the kernels that it started."""
    share: float
    """Of the own time of all operations, 0 to 1."""
    memory_bytes: int | None = None
    """Bytes that its calls allocated and did not free themselves; None if memory was not profiled."""

    def line(self, place: int) -> str:
        """Return the operation as a line of the printed list."""
        return f"{place}. {self.name} ({self.share:.1%} of time)"


class OperationSummary(NamedTuple):
    """The cost of the operations of a profile."""

    clock: str
    """Either "device", if anything ran on one, or "host"."""
    seconds: float
    """Own time of all operations together."""
    operations: list[Operation]
    """The slowest first."""


def summarise(events: Sequence[ProfilerEvent]) -> OperationSummary:
    """Return the operations by their own time, the slowest first; by the device's clock if anything ran on one."""
    host = own_costs(event for event in events if not event.on_device)
    device = [event for event in events if event.on_device and event.name != MEMORY]
    names = {event.correlation: event.name for event in events if event.correlation and not event.on_device}
    spent = [(names.get(event.linked, event.name), event.duration) for event in device]
    total, calls, memory = Counter[str](), Counter[str](), Counter[str]()
    for full_name, duration in spent or [(name, duration) for name, duration, _ in host]:
        name = full_name.removeprefix(PREFIX)
        total[name] += duration
        calls[name] += 1
    for full_name, _, allocated in host:
        memory[full_name.removeprefix(PREFIX)] += allocated
    everything = sum(total.values())
    has_memory = any(event.name == MEMORY for event in events)
    operations = [
        Operation(name, calls[name], total[name] / 1e9, total[name] / everything, memory[name] if has_memory else None)
        for name in sorted(total, key=lambda name: (-total[name], name))
        if everything
    ]
    return OperationSummary(DEVICE if device else HOST, everything / 1e9, operations)


def own_costs(events: Iterable[ProfilerEvent]) -> list[tuple[str, int, int]]:
    """Return name, own time (ns) and own memory (bytes) of each call, without the calls inside it on the same thread.

    Memory that was allocated outside any operation is left out.
    """
    ordered = sorted(events, key=lambda event: (event.thread, event.start, -event.duration, event.name == MEMORY))
    own = [event.duration for event in ordered]
    memory = [0] * len(ordered)
    inside: list[tuple[int, int, int]] = []
    for number, event in enumerate(ordered):
        while inside and (inside[-1][1] != event.thread or event.start >= inside[-1][2]):
            inside.pop()
        if event.name == MEMORY:
            if inside:
                memory[inside[-1][0]] += event.memory
            continue
        if inside:
            own[inside[-1][0]] -= event.duration
        inside.append((number, event.thread, event.start + event.duration))
    return [
        (event.name, max(0, own[number]), memory[number])
        for number, event in enumerate(ordered)
        if event.name != MEMORY
    ]


def read(events: Sequence[Any]) -> list[ProfilerEvent]:
    """Return operations and memory changes from the profiler's raw events, without annotations and Python functions."""
    if not events:
        return []
    exact = hasattr(events[0], "start_ns")  # torch before 2.4 has microseconds
    questions = [name for name in ("is_user_annotation", "is_python_function") if hasattr(events[0], name)]
    found = []
    for raw in events:
        name = raw.name()
        if name.startswith(STEP) or any(getattr(raw, question)() for question in questions):
            continue
        on_device = int(raw.device_type()) != CPU
        start = raw.start_ns() if exact else raw.start_us() * 1000
        duration = raw.duration_ns() if exact else raw.duration_us() * 1000
        number = 0 if on_device else raw.correlation_id()
        linked = raw.linked_correlation_id() if on_device else 0
        size = raw.nbytes() if name == MEMORY else 0
        found.append(ProfilerEvent(name, raw.start_thread_id(), start, duration, on_device, number, linked, size))
    return found
