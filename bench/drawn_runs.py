"""Runs to look at, written straight through the store's own writer: healthy, sick, crowded, long, and a thousand.

The numbers are drawn, not trained, from a fixed seed and a fixed clock, so that a page shows the same every time.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.drawn_machine import HOST, machine_facts, machine_samples
from bench.synthetic import long_run
from stepscope.core.ring import NO_STEP
from stepscope.store.layout import FORMAT_VERSION, RunFolder, Writer
from stepscope.store.points import NO_NS, Points
from stepscope.store.sealed import write_sealed
from stepscope.store.states import NodeState, RankState

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

START = 1_760_000_000_000_000
"""Microseconds since 1970 UTC of the first step."""
SECOND = 1_000_000
WRITER = Writer(HOST, 0)
CONFIG = {
    "model": {"layers": 24, "width": 1024, "heads": 16, "dropout": 0.1},
    "optimizer": {"name": "adamw", "learning_rate": 3e-4, "weight_decay": 0.1, "betas": [0.9, 0.95]},
    "data": {"dataset": "fineweb", "sequence": 2048, "workers": 4},
    "seed": 17,
    "compile": True,
}


@dataclass
class Drawn:
    """What is in a run before it is written."""

    name: str
    config: dict[str, Any] = field(default_factory=lambda: json.loads(json.dumps(CONFIG)))
    state: str = "finished"
    cause: str = ""
    step_seconds: float = 0.25
    steps: int = 2000
    events: list[dict[str, Any]] = field(default_factory=list)
    values: dict[str, Array] = field(default_factory=dict)
    """One value per step, of rank 0, by metric."""
    ranks: dict[int, dict[str, Array]] = field(default_factory=dict)
    """The same of further ranks."""
    samples: dict[str, Array] = field(default_factory=dict)
    """One value per second, of the machine."""
    devices: dict[str, str] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    """Further facts of run.json."""
    start: int = START

    def at(self, step: int) -> int:
        """Return when a step ended, microseconds since 1970 UTC."""
        return self.start + int((step + 1) * self.step_seconds * SECOND)


def write(path: Path, drawn: Drawn) -> Path:
    """Write a run into its folder and return that."""
    folder = RunFolder(path)
    folder.make()
    facts = {"format": FORMAT_VERSION, "id": path.name, "project": path.parent.name, "created": drawn.start}
    host = {"name": HOST, "cores": 16, "memory_bytes": 128 << 30}
    folder.describe({**facts, "name": drawn.name, "config": drawn.config, "host": host, **drawn.tags})
    points = Points.concat([_steps(drawn, rank, values) for rank, values in {0: drawn.values, **drawn.ranks}.items()])
    if drawn.samples:
        points = Points.concat([points, _samples(drawn)])
        machine_facts(drawn.devices).save(folder)
    if len(points):
        last = {str(rank): int(points.seq[points.rank == rank].max()) for rank in np.unique(points.rank)}
        write_sealed(path / "metrics", folder.unit_stem(WRITER, 0, 0), points, last_seq=last)
    _events(folder, drawn)
    _node(folder, drawn)
    return path


def _events(folder: RunFolder, drawn: Drawn) -> None:
    lines = [json.dumps({"rank": 0, "attempt": 0, **event, "sequence": at}) for at, event in enumerate(drawn.events)]
    folder.events_file(WRITER).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _node(folder: RunFolder, drawn: Drawn) -> None:
    end = drawn.at(drawn.steps - 1)
    ranks = {}
    for rank in (0, *drawn.ranks):
        state = RankState(drawn.state, drawn.cause, 4000 + rank, drawn.steps, step=drawn.steps - 1, started=drawn.start)
        state.ended = None if drawn.state == "running" else end
        ranks[rank] = state
    NodeState(WRITER.node, 0, 7, end, 1, "", ended=drawn.state != "running", ranks=ranks).save(folder)


def _steps(drawn: Drawn, rank: int, values: dict[str, Array]) -> Points:
    """Return the values of one rank, without those that are absent."""
    if not values:
        return Points.empty()
    parts = []
    for place, value in enumerate(values.values()):
        step = np.flatnonzero(value != ABSENT)
        parts.append((np.full(len(step), place), step, value[step]))
    code, step, value = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    time = drawn.start + ((step + 1) * drawn.step_seconds * SECOND).astype(np.int64)
    return _columns(list(values), code, rank, step, (step, time, value))


def _samples(drawn: Drawn) -> Points:
    count = int(drawn.steps * drawn.step_seconds)
    names = list(drawn.samples)
    code, at = np.repeat(np.arange(len(names)), count), np.tile(np.arange(count), len(names))
    value = np.concatenate([drawn.samples[name][:count] for name in names])
    place = (np.full(len(at), NO_STEP), drawn.start + at * SECOND, value)
    return _columns(names, code, -1, at, place)


def _columns(names: list[str], code: NDArray[Any], rank: int, seq: NDArray[Any], place: tuple[Any, Any, Any]) -> Points:
    step, time, value = place
    return Points(
        names,
        name=code.astype(np.int32),
        rank=np.full(len(code), rank, np.int32),
        attempt=np.zeros(len(code), np.int32),
        seq=seq.astype(np.int64),
        step=step.astype(np.int64),
        time=time.astype(np.int64),
        value=value.astype(np.float64),
        ns=np.full(len(code), NO_NS, np.int64),
    )


ABSENT = -1.0e300
"""Where a metric was not logged at a step."""


def every(value: Array, steps: int) -> Array:
    """Return a metric that is logged at every so-manieth step only."""
    return np.where((np.arange(len(value)) + 1) % steps == 0, value, ABSENT)


def trained(name: str, seed: int = 1, steps: int = 2000) -> Drawn:
    """Return a language model that learns well on four GPUs."""
    random, run = np.random.default_rng(seed), Drawn(name, steps=steps)
    done = np.arange(steps) / steps
    warm = np.minimum(1.0, (np.arange(steps) + 1) / max(1, steps // 20))
    rate = 3e-4 * warm * (0.1 + 0.45 * (1 + np.cos(np.pi * done)))
    loss = (
        2.6 + 8.2 * np.exp(-done * 9) + 0.5 * (1 - done) + random.normal(0, 0.05, steps) * (1 + 2 * np.exp(-done * 8))
    )
    data, compute = np.abs(random.normal(0.012, 0.003, steps)), np.abs(random.normal(0.225, 0.004, steps))
    phases = {"data": data, "forward": compute * 0.32, "backward": compute * 0.58, "optimizer": compute * 0.10}
    phases["communication"] = np.abs(random.normal(0.009, 0.002, steps))
    total = np.sum(list(phases.values()), axis=0) + 0.002
    run.values = {
        "loss": loss,
        "learning_rate": rate,
        "grad_norm": np.abs(random.normal(0.9, 0.12, steps)) * (1 + 6 * np.exp(-done * 30)),
        "accuracy": every(1 - np.exp(-done * 3) * 0.9 + random.normal(0, 0.004, steps), 10),
        "eval/loss": every(loss + 0.08, max(1, steps // 20)),
        "eval/perplexity": every(np.exp(np.minimum(loss + 0.08, 12)), max(1, steps // 20)),
        "step_seconds": total,
        "tokens_per_second": 524_288 / total,
        "samples_per_second": 256 / total,
        "epoch": 3 * done,
        **{f"phase/{phase}": seconds for phase, seconds in phases.items()},
        "phase/other": np.full(steps, 0.002),
    }
    run.samples, run.devices = machine_samples(random, int(steps * run.step_seconds))
    saved = range(steps // 4, steps, max(1, steps // 4))
    run.events = [{"kind": "checkpoint", "time": run.at(at), "step": at, "text": f"saved step-{at}.pt"} for at in saved]
    return run


def sick(name: str, seed: int = 2, steps: int = 2000) -> Drawn:
    """Return a training that goes wrong in every way: spikes, NaN, a leak, a hot GPU, a stall, a slow rank, a kill."""
    run = trained(name, seed, steps)
    random = np.random.default_rng(seed + 100)
    run.state, run.cause = "oom-killed", "out of memory: limit 128.0 GiB, last seen with 127.6 GiB"
    loss, spike, bad = run.values["loss"], steps * 45 // 100, steps * 80 // 100
    loss[spike : spike + 3] = [38.0, 22.0, 11.0]
    late = np.arange(steps - bad)
    loss[bad:] += np.minimum(np.expm1(late / (steps / 60)), 400)
    loss[steps * 95 // 100 :] = np.nan
    run.values["grad_norm"][bad:] *= np.exp(np.minimum(late / (steps / 50), 12))
    run.values["grad_norm"][steps * 95 // 100 :] = np.inf
    stall = slice(steps * 60 // 100, steps * 66 // 100)
    run.values["phase/data"][stall] += 0.4
    run.values["step_seconds"][stall] += 0.4
    run.values["tokens_per_second"] = 524_288 / run.values["step_seconds"]
    run.ranks = {rank: _other_rank(run, random, rank) for rank in (1, 2, 3)}
    _hot_and_full(run)
    run.events += _sick_events(run, spike, bad)
    run.events.sort(key=lambda event: event["time"])
    return run


def _other_rank(run: Drawn, random: np.random.Generator, rank: int) -> dict[str, Array]:
    slower = 1.35 if rank == 3 else 1.0
    seconds = run.values["step_seconds"] * slower + np.abs(random.normal(0, 0.004, run.steps))
    return {"loss": run.values["loss"] + random.normal(0, 0.05, run.steps), "step_seconds": seconds}


def _hot_and_full(run: Drawn) -> None:
    """Heat GPU 2 until it throttles, and fill the memory up to the limit."""
    count = len(run.samples["cpu/usage_ratio"])
    ramp = np.linspace(0, 1, count)
    run.samples["gpu/2/temperature_celsius"] = 62 + 29 * np.clip(ramp * 1.6, 0, 1)
    run.samples["gpu/2/throttle_hw_thermal"] = (ramp > 0.6).astype(float)
    run.samples["gpu/2/sm_clock_hertz"] = np.where(ramp > 0.6, 0.9e9, 1.98e9)
    run.samples["gpu/2/utilization_ratio"] = np.where(ramp > 0.6, 0.99, 0.95)
    run.samples["memory/used_bytes"] = (28 + 99.6 * ramp) * 2**30
    run.samples["memory/available_bytes"] = run.samples["memory/total_bytes"] - run.samples["memory/used_bytes"]
    run.samples["memory/used_ratio"] = run.samples["memory/used_bytes"] / run.samples["memory/total_bytes"]
    run.samples["process/0/memory_bytes"] = (20 + 96 * ramp) * 2**30


def alert(run: Drawn, step: int, name: str, state: str, severity: str, **more: Any) -> dict[str, Any]:
    """Return one transition of an alert as the watcher writes it."""
    evidence = {"metric": more.pop("metric", "loss"), "value": more.pop("value", None)}
    evidence |= {"threshold": more.pop("threshold", None), "window": more.pop("window", None)}
    facts = {"text": more.pop("text"), "remedy": more.pop("remedy", ""), "labels": more.pop("labels", {})}
    place = {"time": run.at(step), "step": step, "rank": 0, "alert": more.pop("id", f"{name}-1")}
    return {"kind": "alert", "rule": name, "state": state, "severity": severity, **facts, "evidence": evidence, **place}


def _sick_events(run: Drawn, spike: int, bad: int) -> list[dict[str, Any]]:
    steps = run.steps
    spiked: dict[str, Any] = {"text": f"loss jumped to 38 at step {spike}: 9 times its usual level", "metric": "loss"}
    spiked |= {"value": 38.0, "threshold": 12.0, "window": 50, "remedy": "skip the batch, or clip the gradient at 1.0"}
    nan: dict[str, Any] = {"text": f"loss is NaN since step {steps * 95 // 100}", "metric": "loss", "value": None}
    nan |= {"remedy": "lower the learning rate, or go back to the last checkpoint before the rise"}
    hot: dict[str, Any] = {
        "text": "GPU 2 is at 91 °C and has halved its clock",
        "metric": "gpu/2/temperature_celsius",
        "value": 91.0,
    }
    hot |= {"threshold": 87.0, "window": 60, "remedy": "check the fans and the air flow of that machine"}
    full: dict[str, Any] = {
        "text": "memory grows by 12 GiB a minute and is full in 40 s",
        "metric": "memory/used_ratio",
        "value": 0.97,
    }
    full |= {"threshold": 0.95, "window": 120, "remedy": "look for a list that keeps tensors: loss.item(), not loss"}
    data: dict[str, Any] = {
        "text": "waiting for data takes 64 % of a step",
        "metric": "phase/data",
        "value": 0.41,
        "threshold": 0.1,
    }
    data |= {"window": 20, "remedy": "more workers, or look at the disk"}
    return [
        alert(run, spike, "loss-spike", "firing", "warning", **spiked),
        alert(run, spike + steps // 50, "loss-spike", "resolved", "warning", **spiked),
        alert(run, steps * 61 // 100, "data-stall", "firing", "warning", **data),
        alert(run, steps * 62 // 100, "data-stall", "acknowledged", "warning", **data),
        alert(run, steps * 67 // 100, "data-stall", "resolved", "warning", **data),
        alert(run, steps * 70 // 100, "gpu-hot", "firing", "critical", **hot, labels={"gpu": "2"}),
        alert(run, steps * 90 // 100, "memory-filling", "firing", "critical", **full),
        alert(run, steps * 95 // 100, "loss-nan", "firing", "critical", **nan),
        {"kind": "gpu_throttled", "time": run.at(bad), "gpu": 2, "text": "GPU 2 holds its clock down: heat"},
        {"kind": "ended", "time": run.at(steps - 1), "state": run.state, "text": run.cause},
    ]


def crowded(name: str, metrics: int = 200, steps: int = 1000) -> Drawn:
    """Return a run of many metrics in a few groups."""
    random, run = np.random.default_rng(3), Drawn(name, steps=steps)
    groups = ("train", "eval", "grad_norm/layers", "activation_zero_ratio/layers", "attention_entropy/layers")
    for index in range(metrics):
        curve = np.exp(-np.arange(steps) / steps * (1 + index % 7)) * (1 + index % 11)
        run.values[f"{groups[index % len(groups)]}/{index // len(groups):02}"] = curve + random.normal(0, 0.05, steps)
    return run


def ten_million(path: Path) -> Path:
    """Make a run of 10 M points in 50 series, with a spike and a NaN in each of four parts."""
    long_run(path, 50, 200_000, 4)
    return path


def many(root: Path, count: int = 1000, projects: int = 3) -> None:
    """Make a thousand small runs in all states; one in fifty is broken."""
    random, states = np.random.default_rng(4), ("finished", "finished", "finished", "failed", "killed", "preempted")
    kinds = [write(root / ".kinds" / f"kind-{kind}", trained("kind", 10 + kind, 200)) for kind in range(6)]
    for index in range(count):
        name = f"sweep lr={10 ** random.uniform(-5, -2):.1e} seed={index}"
        state = states[index % len(states)]
        cause = {"failed": "RuntimeError: CUDA error: an illegal memory access", "killed": "killed by SIGKILL"}.get(
            state, ""
        )
        run = Drawn(name, state=state, cause=cause, steps=200, start=START + index * 60 * SECOND)
        run.config["optimizer"]["learning_rate"] = float(10 ** random.uniform(-5, -2))
        path = write(root / f"project-{index % projects}" / f"20261115-120000-{index:04x}", run)
        for part in (kinds[index % len(kinds)] / "metrics").iterdir():
            shutil.copyfile(part, path / "metrics" / part.name)
        if index % 50 == 49:
            (path / "run.json").write_text("{ torn", encoding="utf-8")
            os.utime(path, times=(run.start / SECOND, run.start / SECOND))  # the age of a run that cannot tell it
    shutil.rmtree(root / ".kinds")
