"""Scenes to draw: the same numbers every time, without a run or a machine."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from stepscope.core.console_line import ConsoleLine
from stepscope.store.console import ConsoleAnswer
from stepscope.views.sinks import TONES
from stepscope.views.terminal import TerminalCurve, TerminalNode, TerminalRank, TerminalScene
from stepscope.views.terminal_history import History, HistoryBuckets

NOW = 1_760_000_500.0


def history(values, attempt=0):
    """Return the history of values at the steps 0, 1, 2 and so on."""
    value = np.asarray(values, float)
    made = History()
    made.add(HistoryBuckets.of_points(np.arange(len(value), dtype=float), value, np.full(len(value), attempt)))
    return made


def curve(name, values, unit=""):
    """Return a curve of values."""
    return TerminalCurve(name, unit, history(values))


def alert(rule, severity, state, text, since=NOW - 60, **more):
    """Return an alert as `alerts_of` has it."""
    row = {"alert": f"{rule}-1", "rule": rule, "severity": severity, "state": state, "text": text, "since": since}
    return row | {"until": None, "remedy": "", "evidence": {}, "rank": None, "step": None} | more


def node(gpus=2, cores=8):
    """Return a machine with some GPUs."""
    made = TerminalNode("node-a")
    for at in range(60):
        values = {"cpu/usage_ratio": 0.4 + 0.2 * math.sin(at / 5), "memory/used_ratio": 0.5, "cpu/load_1m": 3.25}
        values |= {"memory/used_bytes": 64.0 * 2**30, "memory/total_bytes": 128.0 * 2**30}
        values |= {f"cpu/{core}/usage_ratio": core / max(1, cores - 1) for core in range(cores)}
        values |= {"disk/read_bytes_per_second": 1e7 * at, "disk/write_bytes_per_second": 2e6}
        values |= {"network/received_bytes_per_second": 3e5, "network/sent_bytes_per_second": 1e5}
        for card in range(gpus):
            values |= {
                f"gpu/{card}/utilization_ratio": 0.9 - 0.7 * (card == 1),
                f"gpu/{card}/memory_used_bytes": 70.0 * 2**30,
                f"gpu/{card}/memory_total_bytes": 80.0 * 2**30,
                f"gpu/{card}/temperature_celsius": 65.0 + 25 * card,
                f"gpu/{card}/power_watts": 500.0,
                f"gpu/{card}/power_limit_watts": 700.0,
            }
        made.take(values)
    return made


def run_scene(ranks=4, gpus=2):
    """Return a live run of some ranks, one of them slow, with an alert that fires and one that is over."""
    steps = np.arange(600)
    loss = 2.5 + 6 * np.exp(-steps / 90)
    loss[400], loss[590:] = 30.0, np.nan
    status = {"state": "running", "cause": "", "step": 599, "total_steps": 2000, "progress": 0.3, "rate": 4.0}
    status |= {"left": 350.0, "duration": 150.0, "heard": NOW - 1, "epoch": 0.9}
    scene = TerminalScene("gpt-small", is_run=True, now=NOW, project="demo", id="20261115-120000-abcd", status=status)
    scene.samples_per_second = 1024.0
    drawn = [
        curve("loss", loss),
        curve("accuracy", 1 - np.exp(-steps / 200), "ratio"),
        curve("learning_rate", 3e-4 * np.minimum(1, steps / 50)),
        curve("grad_norm", 1 + 0.1 * np.sin(steps)),
        curve("step_seconds", np.where(steps % 97, 0.25, 0.9), "seconds"),
    ]
    scene.curves = {one.name: one for one in drawn}
    scene.shown = list(scene.curves)
    scene.nodes = {-1: node(gpus)}
    for number in range(ranks):
        slow = 1.4 if number == 2 else 1.0
        phases = {"data": 0.02 * slow, "forward": 0.08, "backward": 0.12, "optimizer": 0.02, "other": 0.01}
        scene.ranks[number] = TerminalRank(number, "running", "node-a", 4000 + number, 599)
        scene.ranks[number].steps.extend([0.25 * slow] * 64)
        scene.ranks[number].phases = {name: deque([seconds] * 64, maxlen=64) for name, seconds in phases.items()}
        scene.ranks[number].values = {"memory_bytes": 5.5 * 2**30, "cpu_ratio": 1.2, "threads": 42.0}
    scene.alerts = [
        alert(
            "loss_nan", "critical", "firing", "loss is NaN since step 590", remedy="lower the learning rate", step=590
        ),
        alert("data_stall", "warning", "resolved", "waiting for data", NOW - 300, until=NOW - 200),
    ]
    scene.console.take(ConsoleAnswer(console_lines(), "", 0, []))
    scene.events = [{"time": NOW - 30, "kind": "checkpoint", "step": 500, "text": "saved step-500.pt"}]
    return scene


def printed(text, rank=0, number=0, time=NOW, **more):
    """Return a line of a console."""
    return ConsoleLine(time, rank, 0, "node-a", number, "out", text, **more)


def console_lines():
    """Return what four ranks print: progress with colours, a long line, and the error of one of them."""
    steps = [
        printed(
            f"\x1b[2mstep\x1b[0m {step} loss \x1b[32m{3 / (1 + step):.4f}\x1b[0m",
            step % 4,
            step // 4,
            NOW - 20 + step / 5,
        )
        for step in range(80)
    ]
    path = "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py"
    error = [
        "Traceback (most recent call last):",
        f'  File "{path}", line 1739, in _wrapped_call_impl',
        "RuntimeError: 形 mismatch",
    ]
    return [*steps, *(printed(text, 2, 20 + place) for place, text in enumerate(error))]


def sink(name, state="keeping up", **facts):
    """Return a sink as `sink_rows` has it."""
    row = {"name": name, "state": state, "tone": TONES[state], "why": "", "address": f"{name}://host", "link": ""}
    return row | {"behind_rows": 0, "behind_seconds": 0.0, "sent_rows": 12_345, "refused_rows": 0} | facts


def machine_scene():
    """Return a machine without a run."""
    scene = TerminalScene("node-a", is_run=False, now=NOW)
    scene.nodes = {-1: node(2, 16)}
    scene.nodes[-1].absent = {"power": "no sensor is readable; run as root"}
    return scene
