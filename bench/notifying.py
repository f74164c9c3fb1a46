"""Alerts on their way to people: from the death of a trainer to the message, and notifiers that are killed mid-send."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from bench.figure import Figure, Options
from bench.sandbox import settled
from stepscope.alerts.delivery.notifier import Brief
from stepscope.alerts.delivery.outbox import Queue
from stepscope.watcher.journal import Journal
from stepscope.watcher.notifying import Notifying, start_notifier

if TYPE_CHECKING:
    from pathlib import Path

KILLS = 100
DEATHS = 5
LONGEST = 0.25
"""Seconds after its start within which a notifier is killed: loading, reading, sending, writing down."""
ANSWER = 0.02
"""Seconds that the receiver takes to answer."""
PATIENCE = 30.0

TRAIN = """
import sys, time, stepscope
settings = {"channels": [sys.argv[2]], "private_addresses": True}
run = stepscope.init(project="p", dir=sys.argv[1], alerting=settings)
print(run.path, flush=True)
for step in range(100000):
    with run.step():
        run.log({"loss": 1.0})
        time.sleep(0.01)
"""


class Receiver:
    """A web server that keeps what comes, and takes its time to answer."""

    def __init__(self) -> None:
        """Listen on a free port of this machine."""
        self.found: list[tuple[float, str]] = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.found += [(time.time(), alert["alert"]) for alert in body["alerts"]]
                time.sleep(ANSWER)
                with contextlib.suppress(OSError):  # whoever sent it was killed
                    self.send_response(200)
                    self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop."""
        self.server.shutdown()
        self.server.server_close()


def measure(options: Options) -> list[Figure]:
    """Return seconds from death to message, and what kills of the notifier cost."""
    receiver = Receiver()
    try:
        deaths = sorted(
            death(options.scratch / f"d{number}", receiver) for number in range(1 if options.quick else DEATHS)
        )
        kills = min(options.kills, KILLS)
        lost, twice = killed(options.scratch, receiver, kills, options.seed)
    finally:
        receiver.close()
    slowest = f"slowest of {len(deaths)}: {deaths[-1]:.2f} s"
    counted = f"of {kills} alerts, the notifier killed once in each"
    return [
        Figure(
            "alert_death", "death of the trainer to message delivered", statistics.median(deaths), "s", 3.0, slowest
        ),
        Figure("alert_lost", "alerts lost, notifier killed mid-send", float(lost), "", 0.0, counted),
        Figure("alert_twice", "most messages of one alert, notifier killed mid-send", float(twice), "", 2.0, counted),
    ]


def death(root: Path, receiver: Receiver) -> float:
    """Kill a trainer; return the seconds until its death was told."""
    command = [sys.executable, "-c", TRAIN, str(root), receiver.url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    run = process.stdout.readline().strip()
    time.sleep(2.0)
    before = len(receiver.found)
    killed_at = time.time()
    process.kill()
    process.communicate()
    end = time.monotonic() + PATIENCE
    while not any(name.startswith("death") for _, name in receiver.found[before:]):
        if time.monotonic() > end:
            raise RuntimeError(f"nobody was told of the death: see {run}/watcher.log")
        time.sleep(0.005)
    settled(root / "p" / os.path.basename(run))
    return next(when for when, name in receiver.found[before:] if name.startswith("death")) - killed_at


def _wait(notifying: Notifying, receiver: Receiver, name: str, dice: random.Random) -> None:
    """Let the notifier work: for any time, or, half of the times, until the message is on its way."""
    moment = time.monotonic() + dice.uniform(0.0, LONGEST)
    is_aimed = dice.random() < 0.5
    while time.monotonic() < (moment + PATIENCE if is_aimed else moment):
        notifying.poll(time.monotonic())
        if is_aimed and any(told == name for _, told in receiver.found[-5:]):
            time.sleep(dice.uniform(0.0, 2 * ANSWER))
            return
        time.sleep(0.001)


def killed(scratch: Path, receiver: Receiver, kills: int, seed: int) -> tuple[int, int]:
    """Kill the notifier once for each alert, at any moment; return how many were lost, and the most tellings of one."""
    run = scratch / "p" / "kills"
    run.mkdir(parents=True)
    children: list[subprocess.Popen[bytes]] = []

    def start(path: str) -> subprocess.Popen[bytes]:
        children.append(start_notifier(path))
        return children[-1]

    settings: dict[str, Any] = {"alerting.channels": [receiver.url], "alerting.private_addresses": True}
    notifying = Notifying(Brief(str(run), "node", settings), Queue(run, "node"), Journal(run / "watcher.log"), start)
    dice = random.Random(seed)
    for number in range(kills):
        event = {"kind": "alert", "alert": f"kill-{number}", "rule": "r", "state": "firing", "severity": "warning"}
        notifying.send([{**event, "text": "x", "time": time.time()}])
        _wait(notifying, receiver, f"kill-{number}", dice)
        if children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(children[-1].pid, signal.SIGKILL)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            notifying.poll(time.monotonic())
            if notifying.idle():
                break
            time.sleep(0.002)
    notifying.close()
    told = [name for _, name in receiver.found if name.startswith("kill-")]
    counts = [told.count(f"kill-{number}") for number in range(kills)]
    return counts.count(0), max(counts, default=0)
