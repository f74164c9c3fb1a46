"""The trace of one process as arrays: what every reader of traces fills and every analysis of them takes.

One row is one event with a beginning and an end, on the host or on a device. What only few events have (shapes, bytes,
graph nodes, memory) is kept apart, by row: a trace of millions of events has to fit into memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows = NDArray[np.intp]
    Numbers = NDArray[np.int64]
    Codes = NDArray[np.int32]
    Ids = NDArray[np.signedinteger[Any]]

KINDS = (
    *("other", "operator", "annotation", "python", "runtime", "overhead"),
    *("sync", "range", "kernel", "memcpy", "memset"),
)
"""Name of each kind of event; its place is its code, as in the constants below."""
# On the host: marks and unknown events, operators of the framework, ranges that a person or the framework named
# (ProfilerStep, optimizer, DataLoader, nccl:all_reduce), Python functions, calls of the device's runtime or driver
# (launches, copies, synchronisation, allocation), and the cost of the profiler itself.
OTHER, OPERATOR, ANNOTATION, PYTHON, RUNTIME, OVERHEAD = range(6)
# On a device's lane while nothing runs: waits for a stream or an event, and named ranges drawn around kernels.
SYNC, RANGE = 6, 7
# On a device at work: kernels, copies and fills.
KERNEL, MEMCPY, MEMSET = 8, 9, 10
FIRST_DEVICE = KERNEL
"""Kinds from here on mean that the device is at work."""
ABSENT = -1
"""A number that an event does not have."""


@dataclass(frozen=True)
class Lane:
    """Where events happen: one thread of the host, or one stream of a device. Events of a host lane nest."""

    pid: int | str
    tid: int | str
    process: str = ""
    """Name of the process in the trace, such as `python3` or `GPU 0`."""
    thread: str = ""
    """Name of the thread in the trace, such as `stream 7`."""
    device: int = ABSENT
    """Number of the device; ABSENT on the host."""
    stream: int = ABSENT
    """Number of the stream; ABSENT on the host (a lane of waits may have -1 too)."""


@dataclass(frozen=True)
class Sparse:
    """A column that few events have."""

    rows: Rows
    """Events that have it, ascending."""
    values: Numbers
    """The number, or, in `Trace.texts`, the place of the text in `Trace.words`."""


@dataclass(frozen=True)
class Memory:
    """The allocator's reports, in order of time: one row per allocation (bytes > 0) or release (bytes < 0)."""

    time: Numbers
    """ns on the clock of the trace."""
    bytes: Numbers
    address: Numbers
    allocated: Numbers
    """Bytes in use after it; ABSENT where not recorded."""
    reserved: Numbers
    """Bytes held from the device after it; ABSENT where not recorded."""
    device: Codes
    """Number of the device; ABSENT for the host."""
    lane: Codes

    def __len__(self) -> int:
        """Return the number of reports."""
        return len(self.time)


@dataclass(frozen=True)
class Trace:
    """One process's events, ordered by start, outer before inner. Times are ns since `origin`."""

    file: str
    rank: int | None
    """None if neither the trace nor its file name has it."""
    start: Numbers
    end: Numbers
    name: Codes
    """Place of the name in `names`."""
    kind: NDArray[np.int8]
    """OPERATOR, KERNEL …, see above."""
    lane: Codes
    """Place of its thread or stream in `lanes`."""
    correlation: Ids
    """Joins a runtime call and the work it started on the device; ABSENT."""
    external: Ids
    """Joins an operator and the work it started; ABSENT."""
    names: list[str]
    words: list[str]
    """Texts of the columns in `texts`."""
    lanes: list[Lane]
    memory: Memory
    numbers: dict[str, Sparse] = field(default_factory=dict)
    """Rare numbers by the name of the argument in the trace, such as `bytes`, `graph id`, `wait_on_stream`."""
    texts: dict[str, Sparse] = field(default_factory=dict)
    """Rare texts, such as `Input Dims`, `Collective name`, `Process Group Name`, `Call stack`."""
    origin: int = 0
    """Time 0 in ns, as the trace's own clock counts (for most: since 1970 or since the machine started)."""
    base: int = 0
    """ns to add to get the time since 1970 (`baseTimeNanoseconds`), 0 if the trace does not have it."""
    world_size: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """The trace's description of itself: distributedInfo, deviceProperties, versions."""
    thinned: bool = False
    """Whether short host events were left out: the host's work in between is then unknown."""
    notes: tuple[str, ...] = ()
    """Everything that was left out or repaired, and why."""

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.start)

    @property
    def on_device(self) -> NDArray[np.bool_]:
        """Which events mean that the device is at work: kernels, copies, fills."""
        return self.kind >= FIRST_DEVICE

    @property
    def device(self) -> Codes:
        """Device of every event, ABSENT on the host."""
        return self._of_lane([lane.device for lane in self.lanes])

    @property
    def stream(self) -> Codes:
        """Stream of every event, ABSENT on the host."""
        return self._of_lane([lane.stream for lane in self.lanes])

    def _of_lane(self, values: list[int]) -> Codes:
        import numpy as np

        return np.asarray(values, np.int32)[self.lane]

    def number(self, key: str, default: int = ABSENT) -> Numbers:
        """Return a rare number for every event, `default` where it has none."""
        return self._dense(self.numbers.get(key), default)

    def text(self, key: str) -> Numbers:
        """Return the place in `words` of a rare text for every event, ABSENT where it has none."""
        return self._dense(self.texts.get(key), ABSENT)

    def _dense(self, column: Sparse | None, default: int) -> Numbers:
        import numpy as np

        values = np.full(len(self), default, np.int64)
        if column is not None:
            values[column.rows] = column.values
        return values

    def named(self, code: int) -> str:
        """Return a name by its code."""
        return self.names[code]
