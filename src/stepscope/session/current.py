"""The current run of this process, for calls such as `stepscope.log(...)`."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from stepscope.core import ring
from stepscope.core.endings import end_of
from stepscope.core.errors import StepscopeError, in_words
from stepscope.core.native_thread import start_without_signals
from stepscope.core.redact import jsonable, redact
from stepscope.recorder.complaints import tell
from stepscope.session.run import END_SECONDS, Run
from stepscope.store.layout import RunFolder, replace
from stepscope.store.meta import MOST_LATER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from stepscope.recorder.hotpath import Data, Phase, Step


LABEL_SECONDS = 0.05
"""Maximum wait for another process that changes the labels."""


def keep_labels(path: Path, given: Mapping[str, Any]) -> None:
    """Add labels to the run in a folder: its tags, notes and group. Never raises: a problem is reported."""
    from stepscope.store.labels import add_labels, change_labels, make_labels  # most runs have none

    try:
        change_labels(RunFolder(path), add_labels(make_labels(**given)), LABEL_SECONDS)
    except Exception as error:  # noqa: BLE001 - a tag's __str__ may raise anything; it is reported
        is_ours = isinstance(error, StepscopeError)
        tell(str(error) if is_ours else f"cannot label the run: {in_words(error)}; pass text")


class LaterFacts:
    """Facts learned after a run started: the values its script was called with, and the script's name for the run.

    A thread writes them beside run.json, so that no call waits for a disk. Safe to call from any thread; never raises.
    """

    def __init__(self, run: Run) -> None:
        """Start with none; only the first rank writes."""
        self._file = RunFolder(run.path).later_file if run.recording and run.rank == 0 else None
        self._facts: dict[str, Any] = {}
        self._labels: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._writer: threading.Thread | None = None

    def add(self, config: Mapping[str, Any], name: str | None, labels: Mapping[str, Any] | None = None) -> None:
        """Add settings, which replace earlier ones of the same name, the name of the run, and its labels."""
        if self._file is None:
            return
        with self._lock:
            if config:
                self._facts["config"] = {**self._facts.get("config", {}), **redact(jsonable(dict(config)))}
            if name:
                self._facts["name"] = str(name)
            self._labels |= labels or {}
        self._writer = threading.Thread(target=self._write, args=(self._file,), name="stepscope-facts", daemon=True)
        start_without_signals(self._writer)

    def _write(self, file: Path) -> None:
        with self._lock:
            text = json.dumps(self._facts, default=str).encode()
            problem: object = f"they are {len(text)} bytes long" if len(text) > MOST_LATER else None
            try:
                if problem is None:
                    replace(file, text)
            except OSError as error:
                problem = error
            labels, self._labels = self._labels, {}
        if any(labels.values()):
            keep_labels(file.parent, labels)
        if problem is not None:
            tell(f"cannot keep the settings of the script: {problem}; pass them to init(config=...)")

    def settle(self, seconds: float) -> None:
        """Wait until the facts are written, at most this many seconds."""
        if self._writer is not None:
            self._writer.join(seconds)


class Current:
    """Which run is the current one, and which must be ended or disarmed with the process."""

    def __init__(self) -> None:
        """Start with none: calls have no effect until `init`."""
        self.run = Run.off()
        self.launched: Run | None = None
        """The run that `stepscope run` started: a run that the script itself starts is this one."""
        self._facts: dict[Run, LaterFacts] = {}
        self._runs: list[Run] = []
        self.end = ""
        """How the program of `stepscope run` has ended, in words; only it sees the argument of sys.exit."""
        self._hooked = False
        self._error_before: object = None

    def adopt(self, run: Run) -> None:
        """Make `run` the current one, keep it alive, and end it with the process."""
        self.run = run
        if not run.recording:
            return
        self._runs = [other for other in self._runs if other.recording] + [run]
        self._facts = {other: facts for other, facts in self._facts.items() if other.recording}
        self._error_before = getattr(sys, "last_value", None)
        if not self._hooked:
            self._hooked = True
            os.register_at_fork(after_in_child=self._after_fork)
            atexit.register(self._at_exit)
        family = sys.modules.get("multiprocessing.process")
        if family is not None and family.parent_process() is not None:
            # Such children end by os._exit and run no atexit function, only multiprocessing's own finalizers.
            sys.modules["multiprocessing.util"].Finalize(None, self._at_exit, exitpriority=0)

    def end_at_prompt(self) -> None:
        """End the previous run at an interactive prompt: the cell or line that started it is run again.

        A program may record several runs at a time, and ends them itself.
        """
        if hasattr(sys, "ps1") and self.run.recording and self.run is not self.launched:
            tell(f"run {self.run.name or self.run.id} is ended: a new one begins")
            self.run.finish()

    def join(self, config: Any, name: str | None, labels: Mapping[str, Any] | None = None) -> Run:
        """Return the run that `stepscope run` started to a script that starts one itself, and keep its arguments."""
        run = self.launched or self.run
        self.run = run
        if config is not None or name is not None:
            run.own_event("config", config=config, name=name)
            found = jsonable(config)
            self.later(found if isinstance(found, dict) else {}, name)
        if labels and any(labels.values()):
            self.later({}, labels=labels)
        return run

    def launch(self, run: Run) -> None:
        """Mark `run` as the one that `stepscope run` started."""
        self.launched, run.is_launched = run, True

    def later(
        self,
        config: Mapping[str, Any],
        name: str | None = None,
        labels: Mapping[str, Any] | None = None,
        run: Run | None = None,
    ) -> None:
        """Keep settings, a name and labels of a run, by default of the one that `stepscope run` started."""
        run = run or self.launched
        if run is None or not run.recording:
            return
        if run not in self._facts:
            self._facts[run] = LaterFacts(run)
        if name is not None and run.name in {"", run.id}:
            run.name = str(name)
        self._facts[run].add(config, name, labels)

    def settle(self, run: Run, seconds: float) -> None:
        """Wait until what was kept of a run is written, at most this many seconds."""
        if run in self._facts:
            self._facts[run].settle(seconds)

    def _after_fork(self) -> None:
        self.launched, self._facts = None, {}
        for run in self._runs:
            run.disarm()
        self._runs = []

    def _at_exit(self) -> None:
        """Record how the process ended, as far as known: an uncaught exception leaves its traces in sys."""
        error = getattr(sys, "last_value", None)
        if error is self._error_before or hasattr(sys, "ps1"):  # an old one, or one at a prompt, which ended nothing
            error = None
        runs = [run for run in self._runs if run.recording and run.stop(error, ring.STATE_EXITED)]
        deadline = time.monotonic() + END_SECONDS
        end = end_of(error) if isinstance(error, BaseException) else self.end
        for run in runs:
            run.let_go(deadline)
            run.say_farewell(end)
        for facts in self._facts.values():
            facts.settle(max(0.0, deadline - time.monotonic()))


CURRENT = Current()


def log(values: dict[str, Any] | None = None, step: int | None = None, **more: Any) -> None:
    """Record one row in the current run; see `Run.log`."""
    CURRENT.run.log(values, step, **more)


def step(samples: float | None = None, index: int | None = None) -> Step:
    """Return the context of one training step of the current run; see `Run.step`."""
    return CURRENT.run.step(samples, index)


def phase(name: str) -> Phase:
    """Return the context of a part of the step; see `Run.phase`."""
    return CURRENT.run.phase(name)


def data(source: Iterable[Any]) -> Data:
    """Iterate over `source`, charging the waiting time to the phase "data"; see `Run.data`."""
    return CURRENT.run.data(source)


def watch(*objects: Any) -> None:
    """Instrument models, optimizers or loaders; see `Run.watch`."""
    CURRENT.run.watch(*objects)


def finish() -> None:
    """End the current run; see `Run.finish`."""
    CURRENT.run.finish()
