"""A node of a simulated fleet, started in namespaces of its own: one process that records some ranks of a job.

All ranks of the job end each step at the same true moment, kept by the monotonic clock, which namespaces share. What
they log is known beforehand: every value tells its rank and step. Prints how many rows were acknowledged.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import stepscope

SHARES = {"forward": 0.5, "backward": 0.3}
"""Share of a usual rank's own time in each phase."""
BUSY, LATE_BUSY = 0.5, 0.9
"""Share of a step in which a usual rank, and the late one, works; it waits for the others in the rest."""
PROJECT, READY, GO = "fleet", ".ready", "go"
PATIENCE = 300.0
"""Seconds that a node waits for the others."""
MARK = "mark"
"""Kind of the events by which the order of the nodes' events is checked."""


@dataclass(frozen=True)
class NodePlan:
    """What one node does."""

    host: str
    ranks: tuple[int, ...]
    world: int
    late: int
    """The rank that the others wait for."""
    steps: int
    seconds: float
    """Seconds of a step."""
    meeting: str
    """Folder in which the nodes say that they are ready, and are told when to begin."""
    run_id: str
    mark: float = 0.0
    """Seconds after the last step at which it writes its event."""

    def encode(self) -> str:
        """Return it as an argument."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> NodePlan:
        """Return the plan in an argument."""
        facts = json.loads(text)
        return cls(**{**facts, "ranks": tuple(facts["ranks"])})


def value_of(rank: int, step: int) -> float:
    """Return what a rank logs in a step."""
    return rank * 1e6 + step


def logged(plan: NodePlan, rank: int, step: int) -> dict[str, float]:
    """Return the row of a rank for a step: its phases, whose sum is the step, and a value that tells both."""
    own = plan.seconds * (LATE_BUSY if rank == plan.late else BUSY)
    usual = {f"phase/{name}": plan.seconds * BUSY * share for name, share in SHARES.items()}
    usual["phase/data"] = own - sum(usual.values())
    return {
        "step_seconds": plan.seconds,
        **usual,
        "phase/communication": plan.seconds - own,
        "value": value_of(rank, step),
    }


def train(plan: NodePlan) -> int:
    """Record the ranks of this node; return the rows that were acknowledged."""
    runs = {}
    for local, rank in enumerate(plan.ranks):
        places = {"RANK": rank, "WORLD_SIZE": plan.world, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": len(plan.ranks)}
        os.environ.update({name: str(number) for name, number in places.items()})
        os.environ["GROUP_RANK"] = str(plan.ranks[0] // len(plan.ranks))
        runs[rank] = stepscope.init(project=PROJECT, run_id=plan.run_id)
    begin, acknowledged = _meet(Path(plan.meeting), plan.host), 0
    for step in range(plan.steps):
        _until(begin + (step + 1) * plan.seconds)
        for rank, run in runs.items():
            run.log(logged(plan, rank, step), step=step)
            acknowledged += 1
    _until(begin + plan.steps * plan.seconds + plan.mark)
    runs[plan.ranks[0]].event(MARK, host=plan.host, step=plan.steps - 1)
    _until(begin + plan.steps * plan.seconds + 1.0)
    for run in runs.values():
        run.finish()
    return acknowledged


def _meet(folder: Path, host: str) -> float:
    """Say that this node is ready; return the monotonic time at which the job begins, in seconds."""
    (folder / f"{host}{READY}").touch()
    end = time.monotonic() + PATIENCE
    while not (folder / GO).exists():
        if time.monotonic() > end:
            raise TimeoutError("the other nodes did not come")
        time.sleep(0.02)
    return float((folder / GO).read_text(encoding="ascii"))


def _until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def main(arguments: list[str]) -> int:
    """Train in a child, and wait for it and, as the first process of a pid namespace, for its watcher."""
    plan = NodePlan.decode(arguments[0])
    socket.sethostname(plan.host)
    child = os.fork()
    if not child:
        answer: dict[str, Any] = {"host": plan.host, "acknowledged": train(plan)}
        sys.stdout.write(json.dumps(answer) + "\n")
        return 0
    status = 1
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, ended = os.wait()
            status = os.waitstatus_to_exitcode(ended) if pid == child else status
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
