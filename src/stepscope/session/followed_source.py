"""One followed source: the files of a run (or of several), the children that read them, and the runs they become."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.core.endings import INTERRUPTED
from stepscope.importers.formats import FORMATS
from stepscope.importers.source_process import TailProcess
from stepscope.session.followed_rows import SourceChangedError
from stepscope.session.foreign_run import FollowPlace, ForeignRun
from stepscope.session.open_files import is_open
from stepscope.sources.imported_run import STATES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from stepscope.importers.following import HandOver
    from stepscope.importers.imported import Imported

    Tell = Callable[[str, "ForeignRun | None", str], None]
    """Reports an event: its kind, its run, and a sentence."""

GONE_SECONDS = 60.0
"""Seconds after which a source that was removed counts as ended."""
SILENT_SECONDS = 60.0
"""A child that says nothing for so long is stuck: its file system may not answer."""
LOOK_AT_PROCESSES = 30.0
"""Seconds between two looks at which files are open."""
STOPPED = "stopped following; the training may go on"
TENSORBOARD, TORCHTITAN = "tfevents", "torchtitan"


class FollowedSource:
    """The state of one source."""

    def __init__(self, group: str, form: str, place: FollowPlace, tell: Tell, *, once: bool = False) -> None:
        """Follow the files of `group`, which is the same for all of them; `once`: read only what is there."""
        self.group, self.form = group, form
        self._place, self._tell, self._once = place, tell, once
        self.paths: list[str] = []
        self.children: list[TailProcess] = []
        self.runs: dict[str, ForeignRun] = {}
        self._ended: set[str] = set()
        """Keys of runs that have ended, by the source's own word or by its silence."""
        self._parts: dict[str | int, list[int]] = {}
        """Which files, by their number, have a metric, or a rank: each one is another attempt of it."""
        self._heard = self._grown = time.monotonic()
        self.changed = 0.0
        self._gone: float | None = None
        self._is_stuck = False
        self._looked = 0.0
        self._notes: set[str] = set()
        self.is_over = False

    def add(self, paths: Iterable[str], changed: float) -> None:
        """Add files of the same run; `changed` is when the latest of them did, in seconds since 1970."""
        new = sorted(paths, key=lambda path: _natural(FORMATS[self.form].ordered_by(path)))
        self.changed = max(self.changed, changed)
        self._grown = time.monotonic() - max(0.0, time.time() - self.changed)
        if FORMATS[self.form].repeats and self.paths:
            self.paths, self._parts = new[-1:], {}
            self._restart()
            return
        self.paths = new[-1:] if FORMATS[self.form].repeats else [*self.paths, *new]
        if not self.children or len(self.children) == len(self.paths) - len(new):
            self._start_next()

    def _start_next(self) -> None:
        """Follow the next file: the files of a run are read one after the other, and then at the same time."""
        if len(self.children) < len(self.paths):
            child = TailProcess(self.paths[len(self.children)], self.form)
            self.children.append(child)
            if self._once:
                child.ask_to_end()

    def _restart(self, *, is_other: bool = False) -> None:
        """Read all files from their beginning."""
        self.close()
        self.children, self._parts = [], {}
        for run in self.runs.values():
            run.begin_again(is_other=is_other)
        self._start_next()

    def hear(self, child: TailProcess) -> None:
        """Take what a child has to say."""
        for what in child.handed_over():
            if child not in self.children:  # it was replaced meanwhile
                return
            self._heard = time.monotonic()
            if self._is_stuck:
                self._is_stuck = False
                self._tell("answers", None, f"{self.group} answers again")
            self._take(child, what)

    def _take(self, child: TailProcess, what: HandOver) -> None:
        number = self.children.index(child)
        self._note(what.notes)
        self._gone = (self._gone or time.monotonic()) if what.is_gone else None
        if what.is_start and not child.is_known:
            child.is_known = True
        elif what.is_start and len(self.children) > 1:
            self._restart()
            return
        elif what.is_start:
            self._tell("replaced", None, f"{child.path} was replaced, and is read from its beginning")
            for run in self.runs.values():
                run.begin_again()
        try:
            for part in what.runs:
                self._record(number, part, what.changed)
        except SourceChangedError:
            self._tell("restarted", None, f"{self.group} has other values than before: it goes on as a new attempt")
            self._restart(is_other=True)
            return
        if what.changed > self.changed:
            self.changed, self._grown = what.changed, time.monotonic()
        if number == len(self.children) - 1:
            self._start_next()

    def _record(self, number: int, part: Imported, changed: float) -> None:
        """Record a part of a run, which came from the file of this number."""
        run = self.runs.get(part.key)
        if run is None:
            run = self.runs[part.key] = ForeignRun(self._place, self.group, self.form, part.key)
        if run.is_new and part.columns and (end := _own_end(part.facts)) is not None:
            run.store_ended(part, *end)
            self._ended.add(part.key)
            self.is_over = FORMATS[self.form].fill_all is None
            self._tell("imported", run, f"{run.name} had ended: imported as {run.id}")
            return
        was_new, is_first = run.is_new, run.points == 0
        if run.take(self._as_attempts(number, part), changed):
            self._ended.discard(part.key)
            if is_first:
                verb = "new run" if was_new else "goes on"
                self._tell("began" if was_new else "continued", run, f"{verb} {run.name} from {self.group}")
        self._note(part.notes)
        if part.key not in self._ended and (end := _own_end(run.facts)) is not None:
            self._end(part.key, *end, certain=True)

    def _as_attempts(self, number: int, part: Imported) -> Imported:
        """Return a part of a run in which a metric's second event file is its second attempt, as in an import.

        So is the second file of a rank of torchtitan.
        """
        if self.form not in {TENSORBOARD, TORCHTITAN}:
            return part
        columns = {}
        for name, series in part.columns.items():
            files = self._parts.setdefault(name if self.form == TENSORBOARD else int(series.rank[0]), [])
            if number not in files:
                files.append(number)
            columns[name] = replace(series, attempt=series.attempt + files.index(number))
        return replace(part, columns=columns)

    def _end(self, key: str, state: str, cause: str, *, certain: bool) -> None:
        run = self.runs[key]
        self._ended.add(key)
        run.end(state, cause, certain=certain)
        text = f"{state}: {cause}" if cause else state
        self._tell("ended", run, f"{run.name} has ended, {text}{'' if certain else ' (inferred)'}")
        self.is_over = FORMATS[self.form].fill_all is None

    def _note(self, notes: Iterable[str]) -> None:
        for note in notes:
            text = re.sub(r" \(\d+ (times|values?)\)$", "", note)
            if text not in self._notes:
                self._notes.add(text)
                self._tell("note", None, f"{self.group}: {note}")

    def look(self, idle: float) -> None:
        """Check the watchers, and whether the source has ended; about once a second."""
        for run in self.runs.values():
            run.look()
        now = time.monotonic()
        if self.children and now - self._heard > SILENT_SECONDS and not self._is_stuck:
            self._is_stuck = True
            text = f"{self.group} has not answered for {SILENT_SECONDS:.0f} s; is its file system dead? waiting for it"
            self._tell("stuck", None, text)
        if self._once or self.is_over:
            return
        if self._gone is not None and now - self._gone > min(GONE_SECONDS, idle):
            self.finish("its file was removed")
        elif now - self._grown > idle and time.time() - self.changed > idle and self._is_closed(now):
            self.finish(f"nothing was written for {_span(idle)}, and no process here has it open")

    def _is_closed(self, now: float) -> bool:
        if now - self._looked < min(LOOK_AT_PROCESSES, 1 + now - self._grown):
            return False
        self._looked = now
        return not is_open({*self.paths}, {child.pid for child in self.children})

    def finish(self, cause: str) -> None:
        """Infer that every run of the source has ended."""
        for key in self.runs:
            if key not in self._ended:
                self._end(key, "finished", cause, certain=False)
        self.is_over = True

    def is_read(self) -> bool:
        """Return whether every file was read, and its child has ended."""
        return len(self.children) == len(self.paths) and all(child.is_over for child in self.children)

    def stop(self, idle: float, cause: str = STOPPED) -> None:
        """Stop following; the training may go on, unless its source is silent for so many seconds."""
        if time.time() - self.changed > idle and self._is_closed(time.monotonic()):
            self.finish(f"nothing was written for {_span(idle)}, and no process here has it open")
            return
        for key, run in self.runs.items():
            if key not in self._ended:
                run.end(INTERRUPTED, cause)
        self.is_over = True

    def fail(self, cause: str) -> None:
        """Give the source up, because it cannot be read any more."""
        for key, run in self.runs.items():
            if key not in self._ended:
                run.end("lost", cause)
        self.is_over = True

    def close(self) -> None:
        """End the children."""
        for child in self.children:
            child.close()


def _own_end(facts: Mapping[str, object]) -> tuple[str, str] | None:
    """Return state and cause of a run by the source's own word; None if it does not say that it has ended."""
    state, code = facts.get("state"), facts.get("exit_code")
    if state in STATES:
        return str(state), str(facts.get("cause") or "")
    if not isinstance(code, int):
        return None
    return ("failed", f"exit code {code}") if code else ("finished", "")


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _natural(path: str) -> list[tuple[int, str]]:
    """Return a key that orders epoch_2 before epoch_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)]
