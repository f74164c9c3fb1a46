"""Runs jobs of real gloo ranks: `python -m bench.stragglers.job` reads one job per line of JSON from stdin.

torch is imported once; every rank is a fork of this process, so a job starts in a second. A line on stdout answers each
job: the folder of its run.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.stragglers.training import train

PATIENCE = 120.0


@dataclass(frozen=True)
class Job:
    """One training of several ranks."""

    name: str
    folder: str
    """Where its run and its rendezvous are."""
    ranks: int = 8
    steps: int = 60
    kind: str = ""
    """What is wrong with the late rank; empty for a healthy job. See `bench.stragglers.training`."""
    late: tuple[int, ...] = ()
    by: str = "hand"
    """How phases are recorded: "hand" marks them, "watch" is `run.watch()` with DDP and a loader."""
    seconds: float = 0.03
    """By how much it is late."""
    per_node: int = 8
    """Ranks of a node: each node has a runtime directory, and so a watcher, of its own."""
    since: int = 0
    """The step from which a rank is late."""
    until: int = 1 << 30
    environ: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, line: str) -> Job:
        """Read a job from JSON."""
        given: dict[str, Any] = json.loads(line)
        return cls(**{**given, "late": tuple(given.get("late", ()))})


def _rank(job: Job, rank: int) -> None:
    """Be one rank of a job, in a process of its own."""
    node = rank // job.per_node
    runtime = Path(job.folder) / f"node-{node}"
    runtime.mkdir(mode=0o700, exist_ok=True)
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(job.ranks), "LOCAL_RANK": str(rank % job.per_node)})
    os.environ.update({"STEPSCOPE_DIR": f"{job.folder}/runs", "STEPSCOPE_RUN_ID": job.name, **job.environ})
    os.environ["STEPSCOPE_RUNTIME_DIR"] = str(runtime)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{job.folder}/meeting", rank=rank, world_size=job.ranks)
    train(job, rank)
    dist.destroy_process_group()


def run(job: Job) -> bool:
    """Run a job to its end; return whether every rank finished."""
    children = []
    for rank in range(job.ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _rank(job, rank)
                code = 0
            except BaseException:  # noqa: BLE001 - a rank must never go on as its parent
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    return all(os.waitpid(child, 0)[1] == 0 for child in children)


def main() -> None:
    """Run every job that is asked for."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what ranks print does not mix with answers
    for line in sys.stdin:
        job = Job.of(line)
        print(json.dumps({"name": job.name, "ok": run(job)}), file=answers, flush=True)


if __name__ == "__main__":
    main()
