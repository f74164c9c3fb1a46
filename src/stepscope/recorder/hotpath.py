"""Everything that a training step executes: log, step, phase, data.

No I/O, JSON, import, log line or device synchronisation happens here, no lock is held across any, and nothing grows.
What is not plain numbers under known names goes to `intake`, a full ring to `overflow`. `native` puts a twin in C in
place (`_hot.c`) where it could be built, the same to the byte. Measured by bench/hotpath.py.
"""

from __future__ import annotations

from sys import intern
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from stepscope.core.ring import WORD_CALL_NS, WORD_CALLS, WORD_HEAD, WORD_REFUSED
from stepscope.recorder.mapping import PackError
from stepscope.recorder.position import RingPosition
from stepscope.recorder.state import Spent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stepscope.recorder.declarations import Layout
    from stepscope.recorder.mapping import Mapping
    from stepscope.recorder.slow_path import SlowPath

OTHER = "other"


class Recorder(RingPosition):
    """Write rows of numbers into the ring, and charge the time of each step to its phases."""

    def __init__(self, mapping: Mapping, intake: SlowPath[Recorder, Phase]) -> None:
        """Take over an empty ring; `intake` handles what the hot path does not."""
        super().__init__(mapping)
        self._intake, self._layouts, self._awaiting = intake, intake.layouts, False
        self._is_plain, self._phases, self._step_layouts = intake.plain.issuperset, intake.phases, intake.step_layouts
        self._due, self._index, self._counting, self._mark, self._current = 0, 0, True, 0, OTHER
        self._spent, self._stack, self._step = Spent(), [], Step(self)

    def log(self, values: dict[str, Any] | None = None, step: int | None = None, **more: Any) -> None:
        """Record one row: a value per name, at the given or the current step. Never raises, never blocks."""
        now = monotonic_ns()
        if more:
            values = {**values, **more} if type(values) is dict else self._intake.join(self, values, more)
        if (
            type(values) is dict
            and (layout := self._layouts.get(tuple(values)))
            and (step is None or type(step) is int)
        ):
            row = values.values()
            try:  # Python's own numbers add up to a float: cheaper to see than ten types, and no tensor is read
                plain = type(sum(row, 0.0)) is float if layout[3] else self._is_plain(map(type, row))
            except Exception as error:  # noqa: BLE001 - the addition of some user's type; intake looks and says why
                plain = self._intake.doubt(error)
            if plain:
                self._write(layout, now, step, row)
            else:
                self._intake.take(self, values, step, now)
        else:
            self._intake.take(self, values, step, now)
        if self._awaiting:
            self._awaiting = self._intake.settle(self) or bool(self._side)

    def step(self, samples: float | None = None, index: int | None = None) -> Step:
        """Return the context of one training step; `samples` is how many examples it takes in."""
        step = self._step
        step.samples = samples
        step.index = None if index is None else self._intake.index(self, index)
        return step

    def phase(self, name: str) -> Phase:
        """Return the context of a part of the step ("forward", "checkpoint", or any name)."""
        return (type(name) is str and self._phases.get(name)) or self._intake.phase(self, name)

    def data(self, source: Iterable[Any]) -> Data:
        """Iterate over `source` and charge the waiting to the phase "data"."""
        return Data(self, source)

    def _write(self, layout: Layout, now: int, step: int | None, row: Iterable[Any]) -> None:
        if self._side and self._tokens:
            self._write_deferred()
        tokens = self._tokens  # a list of one is the lock: pop and append are atomic, and cheaper than an RLock
        try:
            token = tokens.pop()
        except IndexError:  # another thread writes, or this one further up: __del__, a signal handler
            token = self._contend((layout, now, step, row))
            if token is None:
                return
        try:
            head, (pack, size, schema, _, _) = self._head, layout
            if head + size > self._limit:
                head = self._turn()
            at = self._index if step is None else step
            sequence = self._sequence
            pack(self._buffer, head + self._shift, size, schema, sequence, now, at, *row)
            if step is None and self._counting:
                self._index = at + 1
            self._sequence = sequence + 1
            self._head = head = head + size
            self._words[WORD_HEAD] = head
            if sequence & 63 == 63:  # never the first, which is the slowest
                self._words[WORD_CALLS] += 1
                self._words[WORD_CALL_NS] += monotonic_ns() - now
        except PackError as error:  # a step or an integer that no column can hold
            self._words[WORD_REFUSED] += 1
            self._intake.refuse(error)
        finally:
            tokens.append(token)
        if self._side or self._waiting:
            self._let_others()
        if now > self._due:
            self._due = self._intake.look(self._words, now)

    _python_write = _write

    def _end_step(self, samples: Any) -> None:
        now, spent = monotonic_ns(), self._spent
        spent[self._current] += now - self._mark
        self._mark = now
        key = (*spent, samples is not None)
        layout = self._step_layouts.get(key) or self._intake.step_layout(key)
        row = (sum(spent.values()), *spent.values())
        self._write(layout, now, self._index, row if samples is None else (*row, self._intake.number(samples)))
        spent.clear()


class Step:
    """The context of a training step; one object serves all steps of a run."""

    __slots__ = ("_recorder", "index", "samples")

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.samples: float | None = None
        self.index: int | None = None

    def __enter__(self) -> int:
        recorder, index = self._recorder, self.index
        recorder._thread = get_ident()
        recorder._mark = recorder._mark or monotonic_ns()
        if index is None:
            index = 0 if recorder._counting else recorder._index + 1
        recorder._index, recorder._counting = index, False
        return index

    def __exit__(self, *_: object) -> None:
        self._recorder._end_step(self.samples)


class Phase:
    """The context of one named part of the step; nested phases are charged their own time only."""

    __slots__ = ("_foreign", "_name", "_recorder")

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder, self._name = recorder, intern(name)
        self._foreign: list[int] = []

    def __enter__(self) -> None:
        recorder = self._recorder
        if recorder._thread != get_ident() and not recorder._owns(self._foreign):
            return
        now, current = monotonic_ns(), recorder._current
        recorder._spent[current] += now - (recorder._mark or now)
        recorder._mark, recorder._current = now, self._name
        recorder._stack.append(current)

    def __exit__(self, *_: object) -> None:
        if self._foreign and get_ident() in self._foreign:
            self._foreign.remove(get_ident())
            return
        recorder, now = self._recorder, monotonic_ns()
        recorder._spent[self._name] += now - recorder._mark
        recorder._mark, recorder._current = now, recorder._stack.pop() if recorder._stack else OTHER


class Data:
    """An iterable that keeps the length and the attributes of the one it wraps."""

    def __init__(self, recorder: Recorder, source: Iterable[Any]) -> None:
        self._wait, self._source = recorder.phase("data"), source

    def __iter__(self) -> Iterator[Any]:
        with self._wait:
            source = iter(self._source)
        while True:
            with self._wait:
                try:
                    item = next(source)
                except StopIteration:
                    return
            yield item

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__.get("_source"), name)  # not there yet while a copy is being made
