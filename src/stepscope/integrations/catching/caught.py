"""What was caught: values on their way from another tracker's call into our run, each recorded once.

A script may hand the same number to several trackers and to `run.log`. A value is left out if the last one recorded
under its name came from another source, is the same to the bit, and has not stood for a value of this source before.
Cost is measured by bench/catching.py: a call with plain numbers under names that no other source uses stays in
`record`.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import in_words
from stepscope.integrations.catching.things import describe, device_scalar, flat, host_number
from stepscope.recorder.complaints import Complaints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.session.run import Run

    Record = Callable[..., None]

SCRIPT = "script"
"""The source that is the script's own `run.log`."""
_bits = struct.Struct("<d").pack


class Source:
    """One tracker, or the script itself, and the last values that it has recorded."""

    def __init__(self, name: str, joint: str = ".") -> None:
        self.name, self.joint = name, joint
        self.latest: dict[str, Any] = {}
        """The last recorded value of each name, as long as no other source has recorded that name since."""
        self.is_stranger_to = self.latest.keys().isdisjoint
        self.stood_for: dict[str, set[str]] = {}
        """By name: the sources that have left out a value because of the one in `latest`."""
        self.others: list[Source] = []
        """The other sources that have recorded something."""
        self.has_begun = False


class Caught:
    """Takes what trackers are handed, and records it in a run. No method raises."""

    def __init__(self, run: Run, keep: Callable[..., None]) -> None:
        """Record in `run`; `keep` takes settings of the script, and `name=` and `labels=`."""
        self._run, self._keep = run, keep
        self.write: Callable[..., None] = type(run).log.__get__(run)
        """`write(values, step)` records, whatever was caught before; it never raises."""
        self._plain: set[type] = run._intake.plain  # noqa: SLF001 - the number types that the run writes as they are
        self._sources: dict[str, Source] = {}
        self._complaints = Complaints()
        self.at_end: list[Callable[[], None]] = []
        """Called before the run ends."""

    @property
    def has_own_losses(self) -> bool:
        """Whether the loss of each step is recorded anyway, as `stepscope run` does."""
        return self._run.is_launched and self._run.instrument is not None

    def recorder(self, name: str, joint: str = ".") -> Record:
        """Return a function `record(values, step)` for the dicts that the tracker `name` is handed.

        The names of nested dicts are joined by `joint`.
        """
        source = self.source(name, joint)
        latest, stood_for, others = source.latest, source.stood_for, source.others
        write, is_plain = self.write, self._plain.issuperset

        def record(values: dict[str, Any], step: Any = None) -> None:
            try:
                if not is_plain(map(type, values.values())):
                    values = self._sorted(source, values, step)
                is_known = not latest or bool(stood_for)
                for other in others:
                    is_known = is_known or not other.is_stranger_to(values)
                if is_known:
                    values = self._once(source, values)
                latest.update(values)
                if values:
                    write(values, step=step)
            except Exception as error:  # noqa: BLE001 - whatever a script hands over must not stop it; it is reported
                self.complain(name, error)

        return record

    def script_log(self, log: Callable[..., None]) -> Callable[..., None]:
        """Return `run.log` for a script that also uses trackers: the same row, without what was caught already."""
        source = self.source(SCRIPT)
        run = self._run

        @functools.wraps(log)
        def logged(values: Any = None, step: int | None = None, **more: Any) -> None:
            row = {**values, **more} if type(values) is dict else more if values is None else None
            if not row:
                log(values, step, **more)
                return
            try:
                numbers = {name: number for name, value in row.items() if (number := host_number(value)) is not None}
                kept = self._once(source, numbers)
                source.latest.update(kept)
                if len(kept) < len(numbers):
                    row = {name: value for name, value in row.items() if name not in numbers or name in kept}
            except Exception as error:  # noqa: BLE001 - as above
                self.complain(SCRIPT, error)
            if row:
                log(row, step=step)
            elif step is None and run._counting:  # noqa: SLF001 - a row that was caught already counts as one
                run._index += 1  # noqa: SLF001

        return logged

    def source(self, name: str, joint: str = ".") -> Source:
        """Return a tracker's state."""
        if name not in self._sources:
            made = Source(name, joint)
            made.others += [other for other in self._sources.values() if other.has_begun]
            self._sources[name] = made
        return self._sources[name]

    def _once(self, source: Source, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values without those that another source has just recorded."""
        if not source.has_begun:
            source.has_begun = True
            for other in self._sources.values():
                if other is not source:
                    other.others.append(source)
        kept = {}
        for name, value in values.items():
            holder = next((other for other in source.others if name in other.latest), None)
            if holder is not None:
                users = holder.stood_for.setdefault(name, set())
                if source.name not in users and _bits(holder.latest[name]) == _bits(value):
                    users.add(source.name)
                    continue
                del holder.latest[name], holder.stood_for[name]
            source.stood_for.pop(name, None)
            kept[name] = value
        return kept

    def _sorted(self, source: Source, values: Mapping[Any, Any], step: Any) -> dict[str, Any]:
        """Return the numbers on the host; record values on a device, and an event for what is no number."""
        numbers, waiting = {}, {}
        for name, value in flat(values, source.joint):
            number = host_number(value)
            if number is not None:
                numbers[name] = number
            elif device_scalar(value):
                waiting[name] = value
            elif value is not None:
                self.note(source.name, name, value, step)
        if waiting:  # read when they have arrived; not compared, which would wait for the device
            for name in waiting:
                for one in self._sources.values():
                    one.latest.pop(name, None)
            self.write(waiting, step=step)
        return numbers

    def note(self, source: str, name: str, value: Any, step: Any = None, kind: str = "") -> None:
        """Record an event for something that is no number: its kind, name, step and size, without its content."""
        try:
            found = describe(value, kind)
            if found is None:
                self._run.histogram(name, value, step=step)
            else:
                self._run.own_event(step=step, name=str(name), source=source, **found)
        except Exception as error:  # noqa: BLE001 - as above
            self.complain(source, error)

    def config(self, source: str, values: Mapping[str, Any]) -> None:
        """Keep settings that the script tells a tracker."""
        try:
            self._keep({str(name): value for name, value in values.items() if not str(name).startswith("_")})
        except Exception as error:  # noqa: BLE001 - as above
            self.complain(source, error)

    def labels(self, source: str, name: str | None, labels: Mapping[str, Any]) -> None:
        """Keep the name and the labels that the script gives a tracker's run."""
        try:
            self._keep({}, name=name or None, labels=labels)
        except Exception as error:  # noqa: BLE001 - as above
            self.complain(source, error)

    def walled(self, source: str, function: Callable[..., None]) -> Callable[..., None]:
        """Return a function that reports an exception once and never raises."""

        def call(*args: Any, **named: Any) -> None:
            try:
                function(*args, **named)
            except Exception as error:  # noqa: BLE001 - as above
                self.complain(source, error)

        return call

    def complain(self, source: str, error: Exception) -> None:
        """Report the first problem of a source, and count the others."""
        cause = in_words(error, 300)
        self._complaints.say(source, f"cannot record what {source} is handed: {cause}; {source} itself is not affected")
