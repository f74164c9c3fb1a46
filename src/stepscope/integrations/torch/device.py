"""The device's own clock: events on the stream, read when they are ready, never waited for.

On a GPU the host only queues work: its clock shows when a phase was queued, the device's clock how long it ran. Both
are kept. Not verified on hardware: the tests drive this code with a stand-in that counts every waiting call.
"""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_PENDING = 64
"""Maximum steps with pending events; the device times of further steps are dropped."""
MOST_MARKS = 256
"""Maximum events of one step; a step with more passes (accumulation) keeps the first."""


class DeviceClock:
    """Marks on the current stream of one device, and the time between them."""

    def __init__(self, module: Any, log: Callable[[dict[str, float], int], None]) -> None:
        """Create events from `module` (torch.cuda or similar); `log` receives a step's times and its index."""
        self._module, self._log = module, log
        self._marks: list[tuple[str, Any]] = []
        self._pending: deque[tuple[int, list[tuple[str, Any]]]] = deque()
        self._free: list[Any] = []
        self._capturing: Callable[[], bool] = getattr(module, "is_current_stream_capturing", lambda: False)
        self.dropped = 0
        """Number of dropped steps."""

    def mark(self, phase: str = "") -> None:
        """Charge the work queued from now on to `phase`; to none without a name."""
        if len(self._marks) >= MOST_MARKS or self._capturing():
            return
        event = self._free.pop() if self._free else self._module.Event(enable_timing=True)
        event.record()
        self._marks.append((phase, event))

    def seal(self, step: int) -> None:
        """End a step; record the times of earlier steps whose work has finished."""
        if self._marks:
            if len(self._pending) >= MOST_PENDING:
                self.dropped += 1
                self._release(self._marks)
            else:
                self._pending.append((step, self._marks))
            self._marks = []
        self.settle()

    def settle(self) -> None:
        """Record what has arrived, in order, without waiting for the rest."""
        while self._pending:
            step, marks = self._pending[0]
            if not marks[-1][1].query():
                return
            self._pending.popleft()
            spent: defaultdict[str, float] = defaultdict(float)
            for (phase, begun), (_, ended) in pairwise(marks):
                if phase:
                    spent[f"device/{phase}_seconds"] += begun.elapsed_time(ended) / 1e3
            self._release(marks)
            if spent:
                self._log(dict(spent), step)

    def _release(self, marks: list[tuple[str, Any]]) -> None:
        self._free += [event for _, event in marks]
