"""A run of many ranks to look at: one of them waits for its data, a few compute slowly for a while, one GPU is hot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.drawn_runs import SECOND, START
from stepscope.core.ring import NO_STEP
from stepscope.store.layout import FORMAT_VERSION, RunFolder, Writer
from stepscope.store.machine import MachineDescription
from stepscope.store.points import NO_NS, Points
from stepscope.store.sealed import write_sealed
from stepscope.store.states import NodeState, RankState

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LATE, SLOW, HOT = 17, (5, 42), 27
"""The rank that waits for data in the second half, those that compute slowly for a while, and the one on a hot GPU."""
USUAL = 0.21
"""Seconds of a step."""


def write_fleet(
    path: Path,
    name: str,
    nodes: int = 8,
    per: int = 8,
    steps: int = 2000,
    state: str = "running",
    stall: str = "",
) -> Path:
    """Write a job of `nodes` x `per` ranks, all in one state, into its folder and return that."""
    folder = RunFolder(path)
    folder.make()
    facts = {"format": FORMAT_VERSION, "id": path.name, "project": path.parent.name, "created": START, "name": name}
    folder.describe({**facts, "config": {}, "host": {"name": "node-0"}, "world_size": nodes * per})
    for node in range(nodes):
        states = {
            rank: RankState(state, "", 4000 + rank, steps, step=steps - 1, started=START, stall=stall)
            for rank in range(node * per, node * per + per)
        }
        _node(folder, Writer(f"node-{node}", 0), states, steps)
    events = [_placed(rank, per) for rank in range(nodes * per)]
    text = "".join(f"{json.dumps(event)}\n" for event in events)
    folder.events_file(Writer("node-0", 0)).write_text(text, encoding="utf-8")
    return path


def _node(folder: RunFolder, writer: Writer, states: dict[int, RankState], steps: int) -> None:
    ranks, node = range(min(states), max(states) + 1), int(writer.node.rpartition("-")[2])
    parts = [_columns(seconds_of(rank, steps), rank, np.arange(steps)) for rank in ranks]
    parts.append(_columns(_samples(ranks), -1 - node, np.full(60, NO_STEP)))
    points = Points.concat(parts)
    last = {str(rank): steps - 1 for rank in ranks}
    write_sealed(folder.path / "metrics", folder.unit_stem(writer, 0, 0), points, last_seq=last)
    end = START + int(steps * USUAL * SECOND)
    for state in states.values():
        state.ended = None if state.state == "running" else end
    NodeState(writer.node, 0, 7, end, 1, "", ended=True, ranks=states).save(folder)
    devices = {f"gpu/{local}": "NVIDIA H100 80GB HBM3" for local in range(len(ranks))}
    MachineDescription(writer.node, 0, (), {}, devices).save(folder)


def seconds_of(rank: int, steps: int) -> dict[str, Array]:
    """Return the time and phases of each step of a rank: all ranks meet in `communication`."""
    random, at = np.random.default_rng(rank), np.arange(steps) / steps
    late = np.where(at > 0.45, 0.041, 0.0)
    data = np.abs(random.normal(0.012, 0.002, steps)) + (late if rank == LATE else 0.0)
    forward = np.abs(random.normal(0.06, 0.002, steps))
    if rank in SLOW:
        forward = forward + np.where((at > 0.62) & (at < 0.75), 0.014, 0.0)
    if rank == HOT:
        forward = forward + np.clip(at - 0.8, 0, None) * 0.07
    phases = {"data": data, "forward": forward, "backward": np.abs(random.normal(0.085, 0.001, steps))}
    phases |= {"optimizer": np.abs(random.normal(0.01, 0.0005, steps)), "other": np.full(steps, 0.002)}
    total = USUAL - 0.02 + late + np.random.default_rng(999).normal(0, 0.002, steps)
    phases["communication"] = np.maximum(0.001, total - np.sum(list(phases.values()), axis=0))
    found = {f"phase/{name}": seconds for name, seconds in phases.items()}
    return {"step_seconds": np.sum(list(phases.values()), axis=0), **found, "loss": 2.0 + 6 * np.exp(-at * 8)}


def _samples(ranks: range) -> dict[str, Array]:
    found = {}
    for local, rank in enumerate(ranks):
        hot = rank == HOT
        found[f"gpu/{local}/temperature_celsius"] = np.full(60, 91.0 if hot else 60.0 + rank % 7)
        found[f"gpu/{local}/throttle_hw_thermal"] = np.full(60, float(hot))
    return found


def _placed(rank: int, per: int) -> dict[str, Any]:
    coordinates = {"data": rank // (2 * per), "pipeline": rank // per % 2, "tensor": rank % per}
    facts = {"kind": "rank_placed", "time": START / SECOND, "rank": rank, "attempt": 0, "sequence": rank}
    return {**facts, "coordinates": coordinates, "source": "device mesh"}


def _columns(values: dict[str, Array], rank: int, step: NDArray[Any]) -> Points:
    count, names = len(step), list(values)
    seq, size = np.tile(np.arange(count), len(names)), count * len(names)
    return Points(
        names,
        name=np.repeat(np.arange(len(names), dtype=np.int32), count),
        rank=np.full(size, rank, np.int32),
        attempt=np.zeros(size, np.int32),
        seq=seq,
        step=np.tile(step, len(names)).astype(np.int64),
        time=START + ((seq + 1) * USUAL * SECOND).astype(np.int64),
        value=np.concatenate(list(values.values())),
        ns=np.full(size, NO_NS, np.int64),
    )
