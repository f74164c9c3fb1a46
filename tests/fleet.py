"""A run of several ranks on several nodes, sealed from arrays: one rank may be late."""

from __future__ import annotations

import numpy as np

from stepscope.store.layout import FORMAT_VERSION, RunFolder, Writer
from stepscope.store.machine import MachineDescription
from stepscope.store.reader import Past
from stepscope.store.states import NodeState, RankState
from tests.exporters.recorded import CREATED, points_of, seal_points, without_steps


def fleet(root, nodes=2, per=2, steps=200, late=None, phases=True, behind=0, run="run-1", stall=""):
    """Make a running job of `nodes` x `per` ranks; `late` spends 40 ms more of each step of 200 ms on data."""
    folder = RunFolder(root / "demo" / run)
    folder.make()
    facts = {"format": FORMAT_VERSION, "id": run, "name": run, "project": "demo", "created": CREATED}
    folder.describe(facts)
    for node in range(nodes):
        writer = Writer(f"node-{node}.{node:08x}", 0)
        states = {}
        for rank in range(node * per, node * per + per):
            own = 0.04 if rank == late else 0.0
            values = {"step_seconds": np.full(steps, 0.2), "loss": np.linspace(2, 1, steps) + rank}
            if phases:
                values |= {"phase/data": np.full(steps, 0.01 + own), "phase/forward": np.full(steps, 0.05)}
                values |= {"phase/backward": np.full(steps, 0.08), "phase/communication": np.full(steps, 0.06 - own)}
            elif rank == late:
                values["step_seconds"] = np.full(steps, 0.24)
            seal_points(folder, points_of(values, rank=rank), rank, writer=writer)
            step = steps - 1 - (behind if rank == late else 0)
            states[rank] = RankState("running", step=step, started=CREATED, stall=stall)
        hot = {f"gpu/{local}/temperature_celsius": [60.0 + local, 70.0 + local + 10 * node] for local in range(per)}
        hot["gpu/0/throttle_hw_thermal"] = [0.0, float(node)]
        seal_points(folder, without_steps(points_of(hot, rank=-1 - node)), 1000, writer=writer)
        NodeState(writer.node, 0, time=CREATED, ended=True, ranks=states).save(folder)
        MachineDescription(writer.node, 0, (), {}, {f"gpu/{local}": "H100" for local in range(per)}).save(folder)
    return Past(folder)
