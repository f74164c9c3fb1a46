"""Fakes and aids that tests of several rooms share: clocks that the test moves, a run that keeps rows, `readable`."""

from __future__ import annotations

import select


class Clock:
    """Seconds that the test moves; each reading may cost some."""

    def __init__(self, tick=0.0, now=100.0):
        self.now, self.tick = now, tick

    def __call__(self):
        self.now += self.tick
        return self.now


class FakeClock:
    """A wall clock and a monotonic clock, in seconds, that move only when told."""

    def __init__(self, wall=1000.0, ticks=5.0):
        self.wall, self.ticks = wall, ticks

    def wall_ns(self):
        return round(self.wall * 1e9)

    def monotonic_ns(self):
        return round(self.ticks * 1e9)

    def pass_time(self, seconds):
        self.wall += seconds
        self.ticks += seconds


class FakeRun:
    """A run that keeps rows, events and histograms in lists."""

    recording = True

    def __init__(self, step_index=0):
        self.rows, self.events, self.histograms = [], [], []
        self.step_index = step_index
        self.finished, self.error = 0, None

    def log(self, values, step=None):
        self.rows.append((self.step_index if step is None else step, dict(values)))

    def own_event(self, kind, step=None, **fields):
        self.events.append({"kind": kind, "step": self.step_index if step is None else step, **fields})

    def histogram(self, name, values, step=None):
        self.histograms.append((step, name, values))

    def finish(self, error=None):
        self.finished += 1
        self.error = error

    def values(self, name):
        """Return every value of a metric, as floats."""
        return [float(row[name]) for row in self.logged() if name in row]

    def kinds(self):
        return [event["kind"] for event in self.events]

    def logged(self):
        """Return the rows without their steps."""
        return [row for _, row in self.rows]


def readable(descriptor, seconds=0.0):
    """Return whether a descriptor becomes readable in time; unlike `select.select` also for one above 1023."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
