"""Handle input that is not a row of plain numbers under known names: new names, tensors, text, invalid values."""

from __future__ import annotations

import contextlib
import json
import operator
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from stepscope.core.names import clean
from stepscope.core.redact import jsonable, redact
from stepscope.core.ring import LONG_PHASES, WORD_HEARTBEAT, WORD_PHASE, WORD_REFUSED, WORD_STATUS
from stepscope.core.status import text_of
from stepscope.recorder.complaints import Complaints, tell
from stepscope.recorder.declarations import TooManyNamesError
from stepscope.recorder.device import Arriving, DeviceError, DeviceValues, on_device
from stepscope.recorder.hotpath import OTHER, Phase

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepscope.recorder.declarations import Declarations, Layout
    from stepscope.recorder.hotpath import Recorder

MAX_PHASES = 1000
LOOK_EVERY = 1_000_000_000
"""Interval in ns between two checks of the watcher's messages."""
MAX_PENDING = 4096
MAX_TEXT = 32 << 10
"""Maximum bytes of one event's JSON."""
Sorted = tuple[dict[str, float], dict[str, Arriving], dict[str, Any]]
"""The values of one call: numbers, values on their way from a device, and text."""
_PYTHONS = frozenset((float, int, bool))
_REFUSED_TYPES = (complex, bytes, bytearray, set, frozenset, type(None))


class Intake:
    """The slow half of a recorder. What it learns (layouts, number types, phases) makes the next call fast."""

    def __init__(
        self,
        declarations: Declarations | None,
        complaints: Complaints,
        max_events: float = 1000,
        devices: DeviceValues | None = None,
    ) -> None:
        """Declare new layouts through `declarations` (None: record nothing); at most `max_events` a second."""
        self.layouts: dict[tuple[Any, ...], Layout] = {}
        self.plain: set[type] = set(_PYTHONS)
        self.phases: dict[str, Phase] = {}
        self.step_layouts: dict[tuple[Any, ...], Layout] = {}
        self.pending: deque[tuple[list[str], list[Arriving], int, int]] = deque()
        self._undeclared: deque[tuple[dict[str, float], int, int]] = deque()
        """Rows with new names that came while others were declared: values, time and step."""
        self.complaints = complaints
        self._declarations = declarations
        self.on_look: Callable[[int, int], None] | None = None
        self.ring: Path | None = None
        """Path of the ring; the watcher's messages are beside it."""
        self._devices = devices or DeviceValues()
        self._printed = 0
        self._max_events, self._window, self._events = max_events, 0, 0

    def take(self, recorder: Recorder, values: Any, step: Any, now: int) -> None:
        """Record a call of `log` that the hot path could not."""
        if self._declarations is None or not recorder.recording:
            return
        if self.pending:  # values that have arrived make room for new ones
            self.settle(recorder)
        values = self.join(recorder, values, {})
        at = self.step(recorder, step)
        here = recorder._index if at is None else at
        numbers, arriving, texts = self._sort(recorder, values)
        if numbers:
            layout = self._row(recorder, numbers, now, at)
            if layout is not None and len(numbers) == len(values) and all(map(numbers.__contains__, values)):
                self.layouts[tuple(values)] = (*layout[:3], _PYTHONS.issuperset(map(type, values.values())), layout[4])
        elif at is None and recorder._counting and (arriving or texts):
            recorder._index += 1
        if texts:
            self.event(recorder, {"kind": "log", "values": texts}, here, now)
        if arriving:
            self._expect(recorder, (list(arriving), list(arriving.values()), here, now))

    def doubt(self, error: Exception) -> bool:
        """Return False: the row is not plain. An exception raised meanwhile by a user's signal handler is passed on."""
        if _is_from_handler(error):
            raise error
        return False

    def join(self, recorder: Recorder, values: Any, more: dict[str, Any]) -> dict[Any, Any]:
        """Return the arguments of a `log` call as one dict; anything else is refused."""
        if values is None:
            return more
        try:
            return {**values, **more} if isinstance(values, dict) else {**dict(values), **more}
        except Exception:  # noqa: BLE001 - keys() or __iter__ of a user's object may raise anything; it is counted
            self.count(recorder, "call", f"cannot log {_shown(values)}: it is no dict; pass one of names and numbers")
            return more

    def step(self, recorder: Recorder, step: Any) -> int | None:
        """Return a step that was given as something other than an int; None, with a complaint, if it is invalid."""
        if step is None:
            return None
        try:
            if not on_device(step):  # reading it there would wait for the device
                return operator.index(step) if not isinstance(step, float) else int(step)
        except Exception as error:  # noqa: BLE001 - __index__ of a user's object may raise anything; it is counted
            cause = f"it is no integer ({type(error).__name__})"
        else:
            cause = "it lives on a device"
        self.count(recorder, "step", f"cannot use step={_shown(step)}: {cause}; pass a whole number")
        return None

    def index(self, recorder: Recorder, index: Any) -> int | None:
        """Return the index of a step; None, with a complaint, if later steps could not count on from there."""
        number = self.step(recorder, index)
        if number is None or -(2**62) < number < 2**62:
            return number
        self.count(recorder, "step", f"cannot use index={_shown(index)}: it needs too many bits; pass a smaller one")
        return None

    def _sort(self, recorder: Recorder, values: dict[Any, Any]) -> Sorted:
        """Separate numbers, device values and text; refuse the rest."""
        numbers: dict[str, float] = {}
        arriving: dict[str, Arriving] = {}
        texts: dict[str, Any] = {}
        for key, value in values.items():
            name, problem = clean(key)
            if problem is not None:
                self.count(recorder, f"name-{problem}", _name_problem(problem, key), refused=not name)
            if name in numbers or name in arriving or name in texts:
                self.count(recorder, "name-twice", _name_problem("another name of the call comes to the same", key))
            elif type(value) in self.plain and name and not (type(value) is int and value.bit_length() > 1023):
                numbers[name] = value
            elif name:
                self._convert(recorder, name, value, (numbers, arriving, texts))
        return numbers, arriving, texts

    def _convert(self, recorder: Recorder, name: str, value: Any, found: Sorted) -> None:
        numbers, arriving, texts = found
        try:
            if isinstance(value, (str, dict)):
                texts[name] = value
            elif on_device(value):
                arriving[name] = self._devices.take(value)
            elif isinstance(value, _REFUSED_TYPES) or _is_no_real(value):
                self._no_number(recorder, name, f"a value of type {type(value).__name__} is no number")
            else:
                numbers[name] = _float(value)
                if _is_plain(type(value)):
                    self.plain.add(type(value))
        except DeviceError as error:
            self.count(recorder, "device", f"cannot log {name!r}: {error}")
        except Exception as error:  # noqa: BLE001 - __float__ of a user's object may raise anything; it is counted
            self._no_number(recorder, name, f"{type(error).__name__}: {_shown(error)}")

    def _no_number(self, recorder: Recorder, name: str, cause: str) -> None:
        self.count(recorder, "value", f"cannot log {name!r}: {cause}; pass a number, or an array to run.histogram")

    def _row(self, recorder: Recorder, numbers: dict[str, float], now: int, step: int | None) -> Layout | None:
        """Write one row, in pieces if it is longer than a record may be; return its layout if it has its own."""
        declarations = self._declarations
        if declarations is None:  # the run has ended meanwhile
            return None
        longest = declarations.longest
        if len(numbers) > longest:
            items = list(numbers.items())
            at = recorder._index if step is None else step
            for first in range(0, len(items), longest):
                self._row(recorder, dict(items[first : first + longest]), now, at)
            recorder._index += step is None and recorder._counting
            return None
        try:
            names = tuple(numbers)
            layout = declarations.layout(names, "d" * len(names))
            recorder._write(layout or declarations.pairs(names), now, step, numbers.values())
        except TimeoutError:
            self._keep_undeclared(recorder, numbers, now, step)
        except TooManyNamesError:
            self.count(recorder, "names", "cannot log a new name: the run has too many; raise recorder.max_names")
        except OSError as error:
            self.count(recorder, "schema", f"cannot declare new names: {error}; free some space in shared memory")
        else:
            return layout
        return None

    def _keep_undeclared(self, recorder: Recorder, numbers: dict[str, float], now: int, step: int | None) -> None:
        """Leave a row to a later call: a declaration is under way in a slow thread, or below this signal handler."""
        if len(self._undeclared) >= MAX_PENDING:
            recorder._words[WORD_REFUSED] += 1
            return
        self._undeclared.append((numbers, now, recorder._index if step is None else step))
        recorder._index += step is None and recorder._counting
        recorder._awaiting = True

    def event(self, recorder: Recorder, fields: dict[str, Any], step: int, now: int) -> None:
        """Record an event: a dict with a "kind", as JSON within MAX_TEXT bytes."""
        declarations = self._declarations
        if declarations is None or not recorder.recording:
            return
        second = now // 1_000_000_000
        self._window, self._events = second, self._events + 1 if second == self._window else 1
        if self._events > self._max_events:
            self.count(recorder, "events", "cannot record every event: too many a second; log text less often")
            return
        text = json.dumps(redact(jsonable(fields)), separators=(",", ":")).encode()
        room = min(MAX_TEXT, declarations.text_bytes)
        if len(text) > room:
            kind = str(fields.get("kind", "log"))[:16]  # at most 12 bytes per character
            kept = text[: room // 2 - 256].decode(errors="replace")
            text = json.dumps({"kind": kind, "cut": True, "text": kept}).encode()
            self.count(recorder, "text", "cannot keep a long text whole: it was cut; log shorter text", refused=False)
        text += b" " * (-len(text) % 8)
        recorder._write(declarations.text(len(text)), now, step, (text,))

    def _expect(self, recorder: Recorder, row: tuple[list[str], list[Arriving], int, int]) -> None:
        if len(self.pending) < MAX_PENDING:
            self.pending.append(row)
            recorder._awaiting = True
        else:
            self.count(recorder, "pending", "cannot wait for more device values: too many in flight; log less often")

    def settle(self, recorder: Recorder) -> bool:
        """Write the rows that can be written now; return whether more are pending.

        These are rows of device values that have arrived, in order, and rows whose names can be declared by now. Each
        gets the step and the time of its call.
        """
        for _ in range(len(self._undeclared)):
            if self._declarations is None or self._declarations.is_busy:
                break
            with contextlib.suppress(IndexError):  # another thread was faster
                self._row(recorder, *self._undeclared.popleft())
        while self.pending:
            names, values, step, now = self.pending[0]
            try:
                if not all(value.ready() for value in values):
                    return True
                row = {name: value.read() for name, value in zip(names, values, strict=True)}
            except Exception as error:  # noqa: BLE001 - a device in trouble may raise anything; it is counted
                row = {}
                self.count(recorder, "device", f"cannot read a value back: {_shown(error)}; look after the device")
            self.pending.popleft()
            if row:
                self._row(recorder, row, now, step)
        return bool(self._undeclared)

    def close(self, recorder: Recorder) -> None:
        """Accept no more input; device values that have not arrived are dropped and counted."""
        if self.pending:
            cause = f"{len(self.pending)} rows of device values had not arrived"
            self.count(recorder, "late", f"cannot keep every value: {cause}; finish after the last step has ended")
            recorder._words[WORD_REFUSED] += len(self.pending) - 1
        if self._undeclared:  # else nothing is touched: the ring may have been cut, and its memory be gone
            recorder._words[WORD_REFUSED] += len(self._undeclared)
        declarations = self.disarm()
        if declarations is not None:
            declarations.close()

    def disarm(self) -> Declarations | None:
        """Accept no more input, and leave the schema file to the process that shares it; return its declarations."""
        declarations, self._declarations = self._declarations, None
        self.pending.clear()
        self._undeclared.clear()
        return declarations

    def phase(self, recorder: Recorder, name: Any) -> Phase:
        """Return the context of a phase that is used for the first time."""
        cleaned, problem = clean(name)
        if problem is not None or len(self.phases) >= MAX_PHASES:
            cause = "it is odd, too long or one too many"
            self.count(recorder, "phase", f"cannot use the phase name {_shown(name)}: {cause}; use few plain names")
            return Phase(recorder, OTHER)
        kind = LongPhase if cleaned in LONG_PHASES else Phase
        return self.phases.setdefault(cleaned, kind(recorder, cleaned))

    def step_layout(self, key: tuple[Any, ...]) -> Layout:
        """Return the layout of a step's row; `key` is its phases in order, then whether it has samples."""
        *phases, sampled = key
        names = ("step_seconds", *(f"phase/{phase}" for phase in phases), *(["samples"] if sampled else []))
        kinds = "q" * (1 + len(phases)) + "d" * sampled
        layout = None
        if self._declarations is not None:
            try:
                if len(names) <= self._declarations.longest:
                    layout = self._declarations.layout(names, kinds) or self._declarations.pairs(names, kinds)
            except (OSError, TooManyNamesError, TimeoutError) as error:
                self.complaints.say("schema", f"cannot declare the phases of a step: {error}; use few plain names")
        if layout is not None:
            self.step_layouts[key] = layout
        return layout or (_nowhere, 0, 0, True, b"")

    def number(self, value: Any) -> float:
        """Return `samples` as a float; NaN, with a complaint, if it is invalid."""
        try:
            if not on_device(value):  # reading it there would wait for the device
                return _float(value)
        except Exception as error:  # noqa: BLE001 - __float__ of a user's object may raise anything; it is reported
            cause = _shown(error)
        else:
            cause = "it lives on a device"
        self.complaints.say("samples", f"cannot use samples={_shown(value)}: {cause}; pass a number")
        return float("nan")

    def look(self, words: memoryview, now: int) -> int:
        """Check the watcher about once a second and print its messages; return when to check again."""
        self.hear(words)
        if self.on_look is not None:
            self.on_look(words[WORD_HEARTBEAT], now)
        return now + LOOK_EVERY

    def hear(self, words: memoryview) -> None:
        """Print the watcher's messages, once."""
        status = words[WORD_STATUS]
        if status != self._printed:
            self._printed = status
            text = text_of(status, self.ring)
            if text:
                tell(text)

    def refuse(self, error: Exception) -> None:
        """Complain about a number that does not fit (counted by the caller); a run that has just ended fits nothing."""
        if self._declarations is None:
            return
        self.complaints.say("range", f"cannot log a number: {error}; keep steps and values within 64 bits")

    def count(self, recorder: Recorder, kind: str, message: str, *, refused: bool = True) -> None:
        """Complain; `refused` means that a value was lost."""
        if refused:
            recorder._words[WORD_REFUSED] += 1
        self.complaints.say(kind, message)


class LongPhase(Phase):
    """A phase in the ring's header while it is open, so that the watcher does not mistake missing steps for a hang."""

    __slots__ = ("_before", "_number")

    def __init__(self, recorder: Recorder, name: str) -> None:
        super().__init__(recorder, name)
        self._number = LONG_PHASES[name]
        self._before: list[int] = []

    def __enter__(self) -> None:
        """Open the phase; a nested one hides it until it ends."""
        super().__enter__()
        words = self._recorder._words
        self._before.append(words[WORD_PHASE])
        words[WORD_PHASE] = self._number

    def __exit__(self, *_: object) -> None:
        self._recorder._words[WORD_PHASE] = self._before.pop() if self._before else 0
        super().__exit__()


def _is_from_handler(error: BaseException) -> bool:
    """Return whether a signal handler raised this, such as a time limit of the user's."""
    signals = sys.modules.get("signal")
    if signals is None:
        return False
    handlers = [signals.getsignal(number) for number in signals.valid_signals()]
    codes = {getattr(handler, "__code__", None) for handler in handlers} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _nowhere(*_: object) -> None:
    raise OverflowError("no layout for this row")


def _is_plain(kind: type) -> bool:
    """Return whether struct packs values of this type directly and without side effects: numpy's real scalars."""
    names = {base.__name__ for base in kind.__mro__ if base.__module__ == "numpy"}
    return bool(names & {"floating", "integer", "bool", "bool_"})


def _is_no_real(value: Any) -> bool:
    """Return whether numpy would convert something that is not a number: complex, a date or span, text, a record."""
    return str(getattr(getattr(value, "dtype", None), "kind", "")) in tuple("cMmSUVO")


def _float(value: Any) -> float:
    """Return a single number as a float, also from a tensor with a gradient or an array of one element."""
    if hasattr(value, "detach"):
        value = value.detach()
    if getattr(value, "ndim", 0) and hasattr(value, "item"):
        value = value.item()
    return float(value)


def _name_problem(problem: str, key: Any) -> str:
    return f"cannot use the name {_shown(key)} as it is: {problem}; use short plain text"


def _shown(value: Any) -> str:
    """Return a short text for a message, whatever the object does."""
    try:
        return repr(value)[:60]
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"<{type(value).__name__}: {type(error).__name__}>"
