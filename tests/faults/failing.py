"""Drive recorder, watcher and sealing in one process in which the n-th system call fails, for every n.

Run with the shim preloaded: `python -m tests.faults.failing FOLDER WHAT FAULT`; prints what went wrong as JSON.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import stepscope
from stepscope.core import ring
from stepscope.core.places import HELD, find_places
from stepscope.session import opening
from stepscope.session.watching import Watch
from stepscope.store import salvage
from stepscope.store.drain import Stream
from stepscope.store.layout import RunFolder
from stepscope.store.seal import seal
from stepscope.watcher.journal import Journal
from stepscope.watcher.loop import Watcher, WatcherPace
from stepscope.watcher.sealing import Sealing
from tests.faults.shim import FAULTS, Faults

FOREVER = 1 << 40
PARTS, ROWS = 3, 4


class Clock:
    """The system's clocks, and as many seconds more as the test lets pass."""

    def __init__(self):
        self.passed = 0.0

    def wall_ns(self):
        return time.time_ns() + int(self.passed * 1e9)

    def monotonic_ns(self):
        return time.monotonic_ns() + int(self.passed * 1e9)


class SealingHere(Sealing):
    """Seal in this process instead of in a child; whatever ends a child is a failure to be tried again."""

    def _start(self, now):
        writer, number = self._queue[0]
        try:
            seal(self._folder, writer, number)
        except Exception as error:  # noqa: BLE001 - a child that dies of anything
            self._fail(str(error), now)
        else:
            self._queue.popleft()
            self._failures = 0


class SealingNever(Sealing):
    """Leave the rows in the tails."""

    def add(self, writer, number):
        pass


class Alone:
    """One run, recorded and watched by this process alone."""

    def __init__(self, folder, name, sealing):
        self.clock = Clock()
        self.run = stepscope.init(project="failing", run_id=name, dir=folder, recorder__ring_bytes=256 << 10)
        HELD.clear()
        home = RunFolder(self.run.path)
        journal = Journal(home.path / "watcher.log")
        self.watcher = Watcher(home, find_places(), self.clock, WatcherPace(), sealing(home, journal), journal)

    def tick(self, seconds):
        self.clock.passed += seconds
        return self.watcher.tick()

    def train(self):
        """Log some rows, under new names and old ones, with events, and let the watcher work between them."""
        for part in range(PARTS):
            for row in range(ROWS):
                self.run.log({"x": part * ROWS + row, f"part{part}": row / 3})
            self.run.event("note", part=part)
            self.tick(2.1)

    def watch(self):
        """Let the watcher work until nothing is left to do, or for ten times as long as it waits after a failure."""
        for _ in range(10):
            if not self.tick(31.0):
                break

    def wrong(self):
        """Return what is not as it was logged."""
        past = stepscope.open(self.run.path)
        found = {
            "x": past.series("x").value.tolist(),
            **{f"part{part}": past.series(f"part{part}").value.tolist() for part in range(PARTS)},
            "notes": [event["part"] for event in past.events("note")],
            "state": past.state,
            "problems": past.problems(),
        }
        expected = {
            "x": list(range(PARTS * ROWS)),
            **{f"part{part}": [row / 3 for row in range(ROWS)] for part in range(PARTS)},
            "notes": list(range(PARTS)),
            "state": "finished",
            "problems": [],
        }
        return {key: found[key] for key in expected if found[key] != expected[key]}


def watch_once(faults, folder, name, sealing, first, times, error):
    """Return the calls made, the one that failed and what is wrong afterwards, for one failing call."""
    alone = Alone(folder, name, sealing)
    try:
        if sealing is SealingHere:
            alone.train()
            alone.run.stop(None, ring.STATE_FINISHED)
            faults.arm(alone.run.path, first, error, times)
            alone.watch()
        else:
            faults.arm(alone.run.path, first, error, times)
            alone.train()
            alone.run.stop(None, ring.STATE_FINISHED)
    finally:
        seen, call = faults.disarm()
    alone.watch()
    alone.run.let_go(0.0)
    return seen, call, alone.wrong()


def init_once(faults, folder, name, first, times, error):
    """Return the same for a call that fails inside init: it never raises, and what it records is right."""
    faults.arm(folder, first, error, times)
    try:
        run = stepscope.init(project="failing", run_id=name, dir=folder, recorder__ring_bytes=256 << 10)
    finally:
        seen, call = faults.disarm()
    HELD.clear()
    run.log({"x": 1.0})
    run.finish()
    if not run.id:
        return seen, call, {}
    past = stepscope.open(run.path)
    return seen, call, {} if past.series("x").value.tolist() == [1.0] else {"x": past.series("x").value.tolist()}


def once(faults, folder, what, first, times, error):
    """Return the outcome of one failing call of init, of draining or of sealing."""
    name = f"{what}-{first}-{times}"
    if what == "init":
        return init_once(faults, folder, name, first, times, error)
    sealing = SealingHere if what == "sealing" else SealingNever
    return watch_once(faults, folder, name, sealing, first, times, error)


def rounds(faults, folder, what, fault):
    """Yield (first, times, call, wrong) for every call that a run without faults makes, and for ever from there on."""
    error = FAULTS[fault]
    calls, _, wrong = once(faults, folder, what, FOREVER, 0, error)
    yield 0, 0, "none", wrong
    for times in (1,) if fault in {"EINTR", "short write"} else (1, FOREVER):
        for first in range(1, calls + 1):
            try:
                _, call, wrong = once(faults, folder, what, first, times, error)
            except Exception:  # noqa: BLE001 - it is what the test looks for
                call, wrong = faults.disarm()[1], {"raised": traceback.format_exc()[-1500:]}
            yield first, times, call, wrong


def main(folder, what, fault):
    """Print how many rounds there were, which calls failed and what was wrong."""
    opening.Watch = type("NoWatch", (Watch,), {"begin": lambda *_: None})
    salvage.GRACE_SECONDS = 0.0
    Stream.writer_alive = lambda self: self.reader.words()[ring.WORD_STATE] == ring.STATE_RUNNING
    faults, calls, wrong = Faults(), Counter(), []
    for first, times, call, found in rounds(faults, Path(folder), what, fault):
        calls[call] += 1
        if found:
            wrong.append({"first": first, "for ever": times == FOREVER, "call": call, **found})
    print(json.dumps({"calls": calls, "wrong": wrong[:5], "count": len(wrong)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
