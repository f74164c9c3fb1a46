"""A run's outbox with real notifiers, started and supervised as the watcher does it."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from stepscope.alerts.delivery.notifier import Brief
from stepscope.alerts.delivery.outbox import Queue
from stepscope.watcher.journal import Journal
from stepscope.watcher.notifying import Notifying, start_notifier
from tests.integration.processes import PATIENCE, until


class Office:
    """Whoever puts alerts into an outbox."""

    def __init__(self, folder, *channels, probe=False, **settings):
        """Tell these channels."""
        self.run = folder / "mnist" / "r1"
        self.run.mkdir(parents=True, exist_ok=True)
        given = {f"alerting.{key}": value for key, value in settings.items()}
        self.settings = {"alerting.private_addresses": True, "alerting.channels": list(channels), **given}
        self.children, self.reports = [], []
        self._probe, self.notifying = probe, None
        self.begin()

    def begin(self):
        """Begin as a watcher does, after another one that is gone."""
        if self.notifying is not None:
            self.notifying.close()
        brief = Brief(str(self.run), "node", self.settings, probe=self._probe, subject={"name": "first"})
        self.queue = Queue(self.run, "node")
        self.notifying = Notifying(brief, self.queue, Journal(self.run / "watcher.log"), self._start)

    def _start(self, run):
        self.children.append(start_notifier(run))
        return self.children[-1]

    def tell(self, *events, only=""):
        """Put alerts into the outbox."""
        self.notifying.send(list(events), only)

    def poll(self):
        """Do what the watcher does at each tick; say whether everything was told."""
        self.notifying.poll(time.monotonic())
        self.reports += self.notifying.reports
        self.notifying.reports = []
        return self.notifying.idle()

    def deliver(self, seconds=PATIENCE):
        """Go on until everything was told."""
        until(self.poll, "an empty outbox", seconds)

    def until(self, condition, what, seconds=PATIENCE):
        """Go on until something is true."""
        return until(lambda: (self.poll() and False) or condition(), what, seconds)

    def states(self, name=None):
        """Return what was reported of a channel, or of all."""
        return [report["state"] for report in self.reports if name in {None, report.get("channel")}]

    def kill(self):
        """Kill the notifier that runs now, if one does."""
        if self.children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.children[-1].pid, signal.SIGKILL)

    def written(self):
        """Return every byte of the run."""
        return b"".join(path.read_bytes() for path in sorted(self.run.rglob("*")) if path.is_file())

    def close(self):
        """Leave nothing running."""
        self.notifying.close()
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            child.returncode = None
            child.wait()
