"""The actions of alerts other than notifications; each becomes an event of the run, whether it worked or not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.alerts.actions import (
    CHECKPOINT,
    FLAG,
    PROFILE,
    PROFILE_STEPS,
    RUN,
    SAMPLE,
    SAMPLE_INTERVAL,
    SAMPLE_SECONDS,
    STOP,
    Action,
    ActionCommand,
)
from stepscope.core import ring
from stepscope.core.errors import in_words
from stepscope.core.places import REQUEST_SUFFIX
from stepscope.session.requests import Request, place
from stepscope.store.layout import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from stepscope.store.drain import Stream
    from stepscope.watcher.sampling import Sampling

MOST_RUNNING = 4
"""Commands at a time."""


@dataclass
class _Running:
    """A command that was started."""

    command: ActionCommand
    process: subprocess.Popen[bytes]
    until: float
    alert: str


@dataclass
class Acting:
    """The hands of the alerts of one node."""

    run: Path
    streams: Callable[[], Iterable[Stream]]
    """Those of the ranks that live."""
    sampling: Callable[[], Sampling]
    commands: Mapping[str, ActionCommand] = field(default_factory=dict)
    _running: list[_Running] = field(default_factory=list)

    def perform(self, actions: Iterable[Action], alert: Mapping[str, Any], now: float) -> list[dict[str, Any]]:
        """Take the actions of an alert; return an event for each. `now` is monotonic, in seconds; never raises."""
        doing = {
            CHECKPOINT: self._flag,
            STOP: self._stop,
            PROFILE: self._profile,
            SAMPLE: self._quicken,
            RUN: self._run,
        }
        found = []
        for action in actions:
            try:
                why = doing[action.kind](action, alert, now)
            except (OSError, ValueError) as error:
                why = in_words(error)
            facts = {
                "kind": "alert_action",
                "action": action.kind,
                "rule": alert.get("rule"),
                "alert": alert.get("alert"),
            }
            found.append({**facts, **action.options, **({"error": why[:500]} if why else {})})
        return found

    def _flag(self, action: Action, alert: Mapping[str, Any], now: float) -> str:
        """Write the flag file that asks the training for a checkpoint."""
        del action, now
        facts = {key: alert.get(key) for key in ("rule", "alert", "severity", "text", "step", "time")}
        replace(self.run / FLAG, json.dumps(facts, default=str).encode())
        return ""

    def _stop(self, action: Action, alert: Mapping[str, Any], now: float) -> str:
        """Set the flag behind `run.should_stop` in every rank of this node."""
        del action, alert, now
        streams = list(self.streams())
        for stream in streams:
            stream.reader.set_word(ring.WORD_STOP, 1)
        return "" if streams else "no training is left to stop"

    def _profile(self, action: Action, alert: Mapping[str, Any], now: float) -> str:
        """Ask the first rank of this node for a profile."""
        del now
        streams = sorted(self.streams(), key=lambda stream: stream.identity.rank)
        if not streams:
            return "no training is left to profile"
        steps = int(action.options.get("steps", PROFILE_STEPS))
        place(streams[0].path.with_suffix(REQUEST_SUFFIX), Request(f"alert-{alert.get('alert', '')}", {"steps": steps}))
        return ""

    def _quicken(self, action: Action, alert: Mapping[str, Any], now: float) -> str:
        """Ask the machine more often for a while."""
        del alert
        seconds = float(action.options.get("seconds", SAMPLE_SECONDS))
        self.sampling().quicken(float(action.options.get("interval", SAMPLE_INTERVAL)), now + seconds)
        return ""

    def _run(self, action: Action, alert: Mapping[str, Any], now: float) -> str:
        """Start a command of the configuration; the alert is on its standard input as JSON."""
        name = str(action.options.get("command", ""))
        command = self.commands.get(name)
        if command is None:
            return f"alerting.commands has no command {name!r}"
        if len(self._running) >= MOST_RUNNING:
            return f"{MOST_RUNNING} commands run already"
        variables = {
            f"STEPSCOPE_ALERT_{key.upper()}": str(alert.get(key) or "") for key in ("rule", "severity", "alert")
        }
        reader, writer = os.pipe()
        try:
            os.set_blocking(writer, False)
            with contextlib.suppress(BlockingIOError):
                os.write(writer, json.dumps(dict(alert), default=str).encode()[: 1 << 15] + b"\n")
            process = subprocess.Popen(
                command.words,
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd=self.run,
                env={**os.environ, **variables, "STEPSCOPE_ALERT_RUN": str(self.run)},
            )
        finally:
            os.close(reader)
            os.close(writer)
        self._running.append(_Running(command, process, now + command.seconds, str(alert.get("alert", ""))))
        return ""

    def poll(self, now: float) -> list[dict[str, Any]]:
        """End commands that take too long; return an event for each that has ended."""
        found = []
        for running in list(self._running):
            code = running.process.poll()
            if code is None and now > running.until:
                with contextlib.suppress(OSError):
                    os.killpg(running.process.pid, signal.SIGKILL)
                code = running.process.wait()
            if code is not None:
                self._running.remove(running)
                facts = {"kind": "alert_action_ended", "action": RUN, "command": running.command.name}
                found.append({**facts, "alert": running.alert, "exit_code": code})
        return found

    def idle(self) -> bool:
        """Return whether no command runs."""
        return not self._running
