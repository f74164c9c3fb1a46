"""For trainers in tests: go as fast as the watcher, wait for what stepscope says, and count calls that took long."""

from __future__ import annotations

import sys
import time

from stepscope.core import ring
from tests.integration.processes import until

LONG = 0.5
"""Seconds that a call must not take; on a busy machine some do, as any line of the program might."""


def let_catch_up(run, room=1 << 20):
    """Wait until no more than `room` bytes of the ring wait for the watcher: then nothing can be lapped."""
    words = run._words
    until(lambda: words[ring.WORD_HEAD] - words[ring.WORD_CURSOR] <= room, "a watcher that catches up", every=0.001)


class Naps:
    """What the program sleeps from now on, as it asked for it: what a busy machine adds is not in it."""

    def __init__(self):
        self.seconds, self._sleep = 0.0, time.sleep
        time.sleep = self

    def __call__(self, seconds):
        self.seconds += seconds
        self._sleep(seconds)


class Heard:
    """Standard error that also tells how often stepscope has complained."""

    def __init__(self):
        self._below, self.lines = sys.stderr, []
        sys.stderr = self

    def write(self, text):
        self.lines += [line for line in text.splitlines() if line.startswith("stepscope: ")]
        return self._below.write(text)

    def __getattr__(self, name):
        return getattr(self._below, name)


class Calls:
    """Calls of the monitor, of which only those are counted that took long."""

    def __init__(self):
        self.count = self.long = 0

    def time(self, call, *arguments):
        """Call, and count."""
        start = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            self.count += 1
            self.long += time.perf_counter() - start > LONG

    def held_up(self):
        """Say whether calls were held up: more of them than a machine that stands still now and then explains."""
        return self.long > max(3, self.count // 100)
