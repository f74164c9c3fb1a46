"""The actions of alerts other than notifications; each becomes an event of the run, whether it worked or not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.alerts import actions as alert_actions
from stepscope.core import ring
from stepscope.core.errors import StepscopeError, in_words
from stepscope.core.places import REQUEST_SUFFIX
from stepscope.session.requests import ProfileRequest, place
from stepscope.store.layout import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from stepscope.alerts.actions import Action, ActionCommand
    from stepscope.store.drain import Stream
    from stepscope.watcher.sampling import Sampling

MOST_RUNNING = 4
"""Maximum commands at a time."""


@dataclass
class _Running:
    """A command that was started."""

    command: ActionCommand
    process: subprocess.Popen[bytes]
    until: float
    alert: str


@dataclass
class Acting:
    """Takes the actions of one node's alerts."""

    run: Path
    streams: Callable[[], Iterable[Stream]]
    """Returns the rings of the live ranks."""
    sampling: Callable[[], Sampling]
    commands: Mapping[str, ActionCommand] = field(default_factory=dict)
    _running: list[_Running] = field(default_factory=list)

    def perform(self, given: tuple[Any, ...], alert: Mapping[str, Any], now: float) -> list[dict[str, Any]]:
        """Take the actions of an alert; return an event for each. `now` is monotonic, in seconds; never raises."""
        try:
            actions = alert_actions.actions_of(given)
        except StepscopeError as error:
            return [{"kind": "alerting", "text": str(error)}]
        found = []
        for action in actions:
            try:
                why = self._take(action, alert, now)
            except (OSError, ValueError) as error:
                why = in_words(error)
            event = {
                "kind": "alert_action",
                "action": action.kind,
                "rule": alert.get("rule"),
                "alert": alert.get("alert"),
            }
            found.append({**event, **action.options, **({"error": why[:500]} if why else {})})
        return found

    def _take(self, action: Action, alert: Mapping[str, Any], now: float) -> str:
        """Take one action; return why that is not possible, or ""."""
        if action.kind == alert_actions.RUN:
            return self._run(str(action.options.get("command", "")), alert, now)
        streams = sorted(self.streams(), key=lambda stream: stream.identity.rank)
        if action.kind == alert_actions.CHECKPOINT:  # by a flag file that the training may look for
            facts = {key: alert.get(key) for key in ("rule", "alert", "severity", "text", "step", "time")}
            replace(self.run / alert_actions.FLAG, json.dumps(facts, default=str).encode())
        elif action.kind == alert_actions.SAMPLE:
            seconds = float(action.options.get("seconds", alert_actions.SAMPLE_SECONDS))
            self.sampling().quicken(float(action.options.get("interval", alert_actions.SAMPLE_INTERVAL)), now + seconds)
        elif not streams:
            return f"no training is left to {action.kind}"
        elif action.kind == alert_actions.STOP:  # sets `run.should_stop` in every rank of this node
            for stream in streams:
                stream.reader.set_word(ring.WORD_STOP, 1)
        else:  # the first rank of this node is profiled
            steps = int(action.options.get("steps", alert_actions.PROFILE_STEPS))
            request = ProfileRequest(f"alert-{alert.get('alert', '')}", {"steps": steps})
            place(streams[0].path.with_suffix(REQUEST_SUFFIX), request)
        return ""

    def _run(self, name: str, alert: Mapping[str, Any], now: float) -> str:
        """Start a command of the configuration; its standard input is the alert as JSON."""
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
        """Kill commands that take too long; return an event for each that has ended."""
        found = []
        for running in list(self._running):
            code = running.process.poll()
            if code is None and now > running.until:
                with contextlib.suppress(OSError):
                    os.killpg(running.process.pid, signal.SIGKILL)
                code = running.process.wait()
            if code is not None:
                self._running.remove(running)
                facts = {"kind": "alert_action_ended", "action": alert_actions.RUN, "command": running.command.name}
                found.append({**facts, "alert": running.alert, "exit_code": code})
        return found

    def idle(self) -> bool:
        """Return whether no command runs."""
        return not self._running
