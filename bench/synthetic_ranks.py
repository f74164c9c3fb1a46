"""A run of hundreds of synchronous ranks on many nodes, sealed by the store's own code, with a rank that is late.

All ranks meet in each step: it ends at the same true moment everywhere, and a rank that is done early waits in
`phase/communication`. Each node has its own clock, which is off by up to half a minute and drifts a little.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.processes import output_of
from stepscope.core.vocabulary import METRICS, gauge
from stepscope.store.events import encode_event
from stepscope.store.layout import RunFolder, Writer
from stepscope.store.machine import MachineDescription
from stepscope.store.points import NO_NS, Points
from stepscope.store.sealed import write_sealed
from stepscope.store.states import NodeState, RankState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

START = 1_750_000_000.0
"""Seconds since 1970 UTC of the start, by a true clock."""
NO_STEP = -(2**63)
WORKERS = 2
COLLECTIVE = 0.05
"""Seconds of each step in which all ranks exchange gradients."""
CHECKPOINT_EVERY, CHECKPOINT_SECONDS = 1000, 4.0
OFFSET, DRIFT = 30.0, 1e-6
"""Most by which the clock of a node is off in seconds by default, and drifts in seconds per second."""
PARTS = {"data": 0.06, "forward": 0.3, "backward": 0.5, "optimizer": 0.1, "other": 0.04}
"""Share of a rank's own time in each phase."""
GPU_METRICS = ("utilization_ratio", "memory_used_bytes", "temperature_celsius", "power_watts")
PROCESS_METRICS = ("cpu_ratio", "memory_bytes")


@dataclass(frozen=True)
class RankRun:
    """What to make. The defaults give 102 million points of ranks, and 3 million of the machines."""

    ranks: int = 512
    per_node: int = 8
    steps: int = 10_000
    late_rank: int = 137
    late_from: float = 0.4
    """Share of the run after which that rank is late."""
    late_seconds: float = 0.15
    """Seconds that it computes longer in each step from then on."""
    most_ahead: float = OFFSET
    """Most seconds by which the clock of a node is ahead or behind."""
    seed: int = 22

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return -(-self.ranks // self.per_node)

    @property
    def late(self) -> int:
        """The late rank; in a run too small for it, the last one."""
        return min(self.late_rank, self.ranks - 1)

    @property
    def late_step(self) -> int:
        """The first step in which that rank is late."""
        return int(self.steps * self.late_from)

    def ranks_of(self, node: int) -> range:
        """Return the ranks of a node."""
        return range(node * self.per_node, min((node + 1) * self.per_node, self.ranks))

    def offsets(self) -> Floats:
        """Return by how many seconds the clock of each node is ahead at the start; the first node's is right."""
        found = np.random.default_rng(self.seed).uniform(-self.most_ahead, self.most_ahead, self.nodes)
        found[0] = 0.0
        return found

    def drifts(self) -> Floats:
        """Return by how many seconds per second the clock of each node gets ahead."""
        found = np.random.default_rng(self.seed + 1).uniform(-DRIFT, DRIFT, self.nodes)
        found[0] = 0.0
        return found


def node_of(node: int) -> str:
    """Return the name of a node, as a watcher forms it."""
    return f"gpu_{node:03}.{0xA0000000 + node * 7919:08x}"


def make(path: Path, plan: RankRun, run_id: str) -> None:
    """Make the run in a folder that does not exist yet."""
    folder = RunFolder(path)
    folder.make()
    facts = {"format": 1, "id": run_id, "project": path.parent.name, "name": "many ranks", "source": "argument"}
    environment = {"host": node_of(0).partition(".")[0], "config": {"layers": 48, "plan": asdict(plan)}}
    folder.describe({**facts, **environment, "created": round(START * 1e6), "world_size": plan.ranks})
    shares = [json.dumps([str(path), asdict(plan), [*range(plan.nodes)][part::WORKERS]]) for part in range(WORKERS)]
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda share: output_of("-m", "bench.synthetic_ranks", share), shares))


class Course:
    """What happens in the run, by a true clock: when each step ends, and how long each rank computes in it."""

    def __init__(self, plan: RankRun) -> None:
        """Draw the own time of every rank in every step."""
        self.plan = plan
        rng = np.random.default_rng(plan.seed + 2)
        speed = rng.normal(0.9, 0.004, plan.ranks).astype(np.float32)
        self.own = speed[:, None] + rng.gamma(2.0, 0.004, (plan.ranks, plan.steps)).astype(np.float32)
        self.own[plan.late, plan.late_step :] += np.float32(plan.late_seconds)
        slowest = self.own.max(axis=0).astype(np.float64)
        step = np.arange(plan.steps)
        self.checkpoint = np.where((step + 1) % CHECKPOINT_EVERY == 0, CHECKPOINT_SECONDS, 0.0)
        self.seconds = slowest + COLLECTIVE + self.checkpoint
        self.end = START + np.cumsum(self.seconds)

    def rank(self, rank: int) -> dict[str, Floats]:
        """Return the metrics of a rank, one value per step; durations in seconds."""
        steps, late = self.plan.steps, rank == self.plan.late
        rng = np.random.default_rng((self.plan.seed, rank))
        own = self.own[rank].astype(np.float64)
        extra = (
            np.where(np.arange(steps) >= self.plan.late_step, self.plan.late_seconds, 0.0) if late else np.zeros(steps)
        )
        phases = {f"phase/{name}": (own - extra) * share for name, share in PARTS.items()}
        phases["phase/forward"] = phases["phase/forward"] + extra
        step = np.arange(steps)
        return {
            "step_seconds": self.seconds,
            **phases,
            "phase/communication": self.seconds - self.checkpoint - own,
            "memory/resident_bytes": 9.0e9 + 4096.0 * rng.integers(0, 999, steps),
            "loss": 2.0 + 8.0 * np.exp(-3.0 * step / steps) + rng.normal(0, 0.05, steps),
            "grad_norm": np.abs(rng.normal(1.0, 0.2, steps)),
            "learning_rate": 3e-4 * np.minimum(1.0, (step + 1) / 500),
            "samples": np.full(steps, 32.0),
            "tokens": 32.0 * rng.integers(1800, 2048, steps),
            "data/load_seconds": rng.gamma(4.0, 0.01, steps),
        }

    def machine(self, node: int) -> dict[str, Floats]:
        """Return the samples of a node's watcher, one value per second or so: as many as there are steps."""
        steps = self.plan.steps
        rng = np.random.default_rng((self.plan.seed, node, 1))
        found = {"cpu/usage_ratio": rng.uniform(0.2, 0.3, steps), "memory/used_ratio": rng.uniform(0.4, 0.41, steps)}
        for index, rank in enumerate(self.plan.ranks_of(node)):
            hot = np.arange(steps) >= self.plan.late_step if rank == self.plan.late else np.zeros(steps, bool)
            values = (rng.uniform(0.9, 1.0, steps), np.full(steps, 6.0e10), 61.0 + 26.0 * hot, 650.0 - 210.0 * hot)
            found |= {f"gpu/{index}/{name}": value + 0.0 for name, value in zip(GPU_METRICS, values, strict=True)}
            own = (rng.uniform(0.95, 1.05, steps), np.full(steps, 8.0e9) + 1e5 * rng.integers(0, 9, steps))
            found |= {f"process/{rank}/{name}": value for name, value in zip(PROCESS_METRICS, own, strict=True)}
        return found


def seal_node(path: Path, course: Course, node: int) -> None:
    """Seal everything of a node as one unit, and write its files."""
    plan, folder, writer = course.plan, RunFolder(path), Writer(node_of(node), 0)
    offset, drift = float(plan.offsets()[node]), float(plan.drifts()[node])
    clock = course.end + offset + drift * (course.end - START)
    rng = np.random.default_rng((plan.seed, node, 2))
    parts = []
    for rank in plan.ranks_of(node):
        late = rng.gamma(
            2.0, 0.0003, plan.steps
        )  # a rank notices the end of a collective a little later than the others
        parts.append(_points(course.rank(rank), rank, np.arange(plan.steps), clock + late))
        saved = np.flatnonzero(course.checkpoint)
        parts.append(_points({"phase/checkpoint": course.checkpoint[saved]}, rank, saved, (clock + late)[saved]))
    parts.append(_points(course.machine(node), -1 - node, np.full(plan.steps, NO_STEP), clock - 0.3))
    points = Points.concat(parts)
    last = {str(rank): plan.steps - 1 for rank in [*plan.ranks_of(node), -1 - node]}
    # In a folder of its own first: the other process must not clear away what this one writes.
    stage = path / f"stage-{node}"
    stage.mkdir()
    write_sealed(stage, folder.unit_stem(writer, 0, 0), points, last_seq=last)
    for part in stage.iterdir():
        part.rename(path / "metrics" / part.name)
    stage.rmdir()
    _describe(folder, course, node, clock)


def _points(series: dict[str, Floats], rank: int, step: NDArray[np.int64], when: Floats) -> Points:
    count, length = len(series), len(when)
    names = list(series)
    value = np.concatenate([series[name].astype(np.float32).astype(np.float64) for name in names])
    timed = np.repeat([name == "step_seconds" or name.startswith("phase/") for name in names], length)
    ns = np.where(timed, np.round(np.where(timed, value, 0.0) * 1e9), NO_NS).astype(np.int64)
    return Points(
        names,
        name=np.repeat(np.arange(count, dtype=np.int32), length),
        rank=np.full(count * length, rank, np.int32),
        attempt=np.zeros(count * length, np.int32),
        seq=np.tile(np.where(step == NO_STEP, np.arange(length), step), count),
        step=np.tile(step.astype(np.int64), count),
        time=np.tile(np.round(when * 1e6).astype(np.int64), count),
        value=value,
        ns=ns,
    )


def _describe(folder: RunFolder, course: Course, node: int, clock: Floats) -> None:
    """Write the files of a node that ended well: its states, its machine and its events."""
    plan, writer = course.plan, Writer(node_of(node), 0)
    began, ended = round((clock[0] - course.seconds[0]) * 1e6), round(clock[-1] * 1e6)
    ranks = {
        rank: RankState(
            state="finished",
            pid=1000 + rank,
            rows=plan.steps,
            step=plan.steps - 1,
            steps=plan.steps,
            step_seconds=float(course.seconds.sum()),
            started=began,
            ended=ended,
        )
        for rank in plan.ranks_of(node)
    }
    state = NodeState(writer.node, 0, plan.steps // 2, ended, 1, f"boot-{node}", ended=True, ranks=ranks)
    state.save(folder)
    os.utime(
        folder.node_file(writer), (float(course.end[-1]), float(course.end[-1]))
    )  # the file server's clock is right
    known = tuple(metric for metric in METRICS if metric.name.startswith(("gpu/", "cpu/", "memory/", "process/")))
    known += (gauge("process/*/cpu_ratio", "CPU time of the rank's process, as a share of one CPU."),)
    devices = {f"gpu/{index}": "NVIDIA H100 80GB HBM3" for index in range(len(ranks))}
    MachineDescription(writer.node, 0, known, {}, devices).save(folder)
    events = [{"time": began, "rank": -1 - node, "attempt": 0, "kind": "watcher_started"}]
    if 0 in ranks:
        saved = np.flatnonzero(course.checkpoint)
        common = {"rank": 0, "attempt": 0, "kind": "checkpoint"}
        events += [
            {"time": round(clock[step] * 1e6), **common, "step": step, "sequence": step} for step in saved.tolist()
        ]
    folder.events_file(writer).write_bytes(b"".join(map(encode_event, events)))


def main(arguments: list[str]) -> int:
    """Seal some nodes, one after another."""
    path, plan, nodes = json.loads(arguments[0])
    course = Course(RankRun(**plan))
    for node in nodes:
        seal_node(Path(path), course, node)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
