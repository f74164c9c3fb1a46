"""Take in whatever is not a row of plain numbers under known names: new names, tensors, text, nonsense."""

from __future__ import annotations

import json
import operator
from collections import deque
from typing import TYPE_CHECKING, Any

from stepscope.core.names import clean
from stepscope.core.redact import jsonable, redact
from stepscope.core.ring import WORD_HEARTBEAT, WORD_REFUSED, WORD_STATUS
from stepscope.core.status import MESSAGES
from stepscope.recorder.complaints import Complaints, tell
from stepscope.recorder.declarations import TooManyNamesError
from stepscope.recorder.device import Arriving, DeviceError, DeviceValues, on_device
from stepscope.recorder.hotpath import OTHER, Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.recorder.declarations import Declarations
    from stepscope.recorder.hotpath import Layout, Recorder

MAX_PHASES = 1000
LOOK_EVERY = 1_000_000_000
"""Nanoseconds between two looks at what the watcher says."""
MAX_PENDING = 4096
MAX_TEXT = 32 << 10
"""Bytes of one event's JSON."""
Sorted = tuple[dict[str, float], dict[str, Arriving], dict[str, Any]]
"""The values of one call: numbers, those on their way from a device, and text."""
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
        self.complaints = complaints
        self._declarations = declarations
        self.on_look: Callable[[int, int], None] | None = None
        self._devices = devices or DeviceValues()
        self._told = 0
        self._max_events, self._window, self._events = max_events, 0, 0

    def take(self, recorder: Recorder, values: Any, step: Any, now: int) -> None:
        """Record a call of `log` that the hot path could not."""
        if self._declarations is None or not recorder.recording:
            return
        if not isinstance(values, dict):
            try:
                values = dict(values)
            except (TypeError, ValueError):
                self.count(
                    recorder, "call", f"cannot log {_shown(values)}: it is no dict; pass one of names and numbers"
                )
                return
        at = self._step(recorder, step)
        numbers, arriving, texts = self._sort(recorder, values)
        if numbers:
            layout = self._row(recorder, numbers, now, at)
            if layout is not None and len(numbers) == len(values) and all(map(numbers.__contains__, values)):
                self.layouts[tuple(values)] = (*layout[:3], _PYTHONS.issuperset(map(type, values.values())))
        elif at is None and recorder._counting and (arriving or texts):
            recorder._index += 1
        at = recorder._index - recorder._counting if at is None else at
        if texts:
            self.event(recorder, {"kind": "log", "values": texts}, at, now)
        if arriving:
            self._expect(recorder, (list(arriving), list(arriving.values()), at, now))

    def _step(self, recorder: Recorder, step: Any) -> int | None:
        if step is None:
            return None
        try:
            return operator.index(step) if not isinstance(step, float) else int(step)
        except (TypeError, ValueError, OverflowError):
            self.count(recorder, "step", f"cannot use step={_shown(step)}: it is no integer; pass a whole number")
            return None

    def _sort(self, recorder: Recorder, values: dict[Any, Any]) -> Sorted:
        """Tell numbers, device values and text apart; refuse the rest."""
        numbers: dict[str, float] = {}
        arriving: dict[str, Arriving] = {}
        texts: dict[str, Any] = {}
        for key, value in values.items():
            name, problem = (key, None) if type(key) is str and key in numbers else clean(key)
            if problem is not None:
                self.count(recorder, f"name-{problem}", _name_problem(problem, key), refused=not name)
            if not name:
                continue
            if type(value) in self.plain:
                numbers[name] = value
            elif isinstance(value, (str, dict)):
                texts[name] = value
            else:
                self._convert(recorder, name, value, numbers, arriving)
        return numbers, arriving, texts

    def _convert(
        self, recorder: Recorder, name: str, value: Any, numbers: dict[str, float], arriving: dict[str, Arriving]
    ) -> None:
        try:
            if on_device(value):
                arriving[name] = self._devices.take(value)
            elif isinstance(value, _REFUSED_TYPES):
                self._no_number(recorder, name, f"a value of type {type(value).__name__} is no number")
            else:
                numbers[name] = float(value)
                if _is_plain(type(value)):
                    self.plain.add(type(value))
        except DeviceError as error:
            self.count(recorder, "device", f"cannot log {name!r}: {error}")
        except Exception as error:  # noqa: BLE001 - __float__ of a user's object may raise anything; it is counted
            self._no_number(recorder, name, f"{type(error).__name__}: {_shown(error)}")

    def _no_number(self, recorder: Recorder, name: str, cause: str) -> None:
        self.count(recorder, "value", f"cannot log {name!r}: {cause}; pass a number, or an array to run.histogram")

    def _row(self, recorder: Recorder, numbers: dict[str, float], now: int, step: int | None) -> Layout | None:
        """Write one row, in pieces if it is longer than a record may be; return its layout if it has one of its own."""
        assert self._declarations is not None  # noqa: S101 - take() has checked
        longest = self._declarations.longest
        if len(numbers) > longest // 2:
            items = list(numbers.items())
            at = recorder._index if step is None else step
            for first in range(0, len(items), longest // 2):
                self._row(recorder, dict(items[first : first + longest // 2]), now, at)
            recorder._index += step is None and recorder._counting
            return None
        try:
            names = tuple(numbers)
            layout = self._declarations.layout(names, "d" * len(names))
            if layout is not None:
                recorder._write(layout, now, step, numbers.values())
                return layout
            pair_layout, ids = self._declarations.pairs(names)
            pairs = zip(ids, numbers.values(), strict=True)
            recorder._write(pair_layout, now, step, [part for pair in pairs for part in pair])
        except (OSError, TooManyNamesError, TimeoutError) as error:
            self._no_layout(recorder, error)
        return None

    def _no_layout(self, recorder: Recorder, error: Exception) -> None:
        if isinstance(error, TooManyNamesError):
            self.count(recorder, "names", "cannot log a new name: the run has too many; raise recorder.max_names")
        elif not isinstance(error, TimeoutError):
            self.count(recorder, "schema", f"cannot declare new names: {error}; free some space in shared memory")
        else:
            recorder._words[WORD_REFUSED] += 1

    def event(self, recorder: Recorder, fields: dict[str, Any], step: int, now: int) -> None:
        """Record an event: a dict with a "kind", as JSON within MAX_TEXT bytes."""
        if self._declarations is None or not recorder.recording:
            return
        second = now // 1_000_000_000
        self._window, self._events = second, self._events + 1 if second == self._window else 1
        if self._events > self._max_events:
            self.count(recorder, "events", "cannot record every event: too many a second; log text less often")
            return
        text = json.dumps(redact(jsonable(fields)), separators=(",", ":")).encode()
        room = min(MAX_TEXT, self._declarations.longest * 8)
        if len(text) > room:
            kind = str(fields.get("kind", "log"))[:64]
            kept = text[: room // 2 - 256].decode(errors="replace")
            text = json.dumps({"kind": kind, "cut": True, "text": kept}).encode()[:room]
            self.count(recorder, "text", "cannot keep a long text whole: it was cut; log shorter text", refused=False)
        text += b" " * (-len(text) % 8)
        recorder._write(self._declarations.text(len(text)), now, step, (text,))

    def _expect(self, recorder: Recorder, row: tuple[list[str], list[Arriving], int, int]) -> None:
        if len(self.pending) < MAX_PENDING:
            self.pending.append(row)
        else:
            self.count(recorder, "pending", "cannot wait for more device values: too many in flight; log less often")

    def settle(self, recorder: Recorder) -> None:
        """Write the rows of device values that have arrived, in their order, with the step and time of their call."""
        while self.pending and all(value.ready() for value in self.pending[0][1]):
            names, values, step, now = self.pending.popleft()
            self._row(recorder, {name: value.read() for name, value in zip(names, values, strict=True)}, now, step)

    def phase(self, recorder: Recorder, name: Any) -> Phase:
        """Return the context of a phase that is used for the first time."""
        cleaned, problem = clean(name)
        if problem is not None or len(self.phases) >= MAX_PHASES:
            cause = "it is odd, too long or one too many"
            self.count(recorder, "phase", f"cannot use the phase name {_shown(name)}: {cause}; use few plain names")
            return Phase(recorder, OTHER)
        return self.phases.setdefault(cleaned, Phase(recorder, cleaned))

    def step_layout(self, key: tuple[Any, ...]) -> Layout:
        """Return the layout of a step's row; `key` is its phases in order, then whether it has samples."""
        *phases, sampled = key
        names = ("step_seconds", *(f"phase/{phase}" for phase in phases), *(["samples"] if sampled else []))
        kinds = "q" * (1 + len(phases)) + "d" * sampled
        layout = None
        if self._declarations is not None:
            try:
                layout = self._declarations.layout(names, kinds)
            except (OSError, TooManyNamesError, TimeoutError) as error:
                self.complaints.say("schema", f"cannot declare the phases of a step: {error}; use few plain names")
        if layout is not None:
            self.step_layouts[key] = layout
        return layout or (_nowhere, 0, 0, True)

    def number(self, value: Any) -> float:
        """Return `samples` as a float; NaN, and a complaint, if it is none."""
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            self.complaints.say("samples", f"cannot use samples={_shown(value)}: {error}; pass a number")
            return float("nan")

    def look(self, words: memoryview, now: int) -> int:
        """Look after the watcher, about once a second: print what it has to say; return when to look again."""
        status = words[WORD_STATUS]
        if status != self._told:
            self._told = status
            if status in MESSAGES:
                tell(MESSAGES[status])
        if self.on_look is not None:
            self.on_look(words[WORD_HEARTBEAT], now)
        return now + LOOK_EVERY

    def refuse(self, error: Exception) -> None:
        """Complain about a number that does not fit (counted by the caller)."""
        self.complaints.say("range", f"cannot log a number: {error}; keep steps and values within 64 bits")

    def count(self, recorder: Recorder, kind: str, message: str, *, refused: bool = True) -> None:
        """Complain; `refused` says that a value was lost by it."""
        if refused:
            recorder._words[WORD_REFUSED] += 1
        self.complaints.say(kind, message)


def _nowhere(*_: object) -> None:
    raise OverflowError("no layout for this row")


def _is_plain(kind: type) -> bool:
    """Say whether struct packs values of this type at once and without side effects: numpy's real scalars."""
    names = {base.__name__ for base in kind.__mro__ if base.__module__ == "numpy"}
    return bool(names & {"floating", "integer", "bool", "bool_"})


def _name_problem(problem: str, key: Any) -> str:
    return f"cannot use the name {_shown(key)} as it is: {problem}; use short plain text"


def _shown(value: Any) -> str:
    """Return a short text for a message, whatever the object does."""
    try:
        return repr(value)[:60]
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"<{type(value).__name__}: {type(error).__name__}>"
