"""What watchers write of a job of many ranks of which one sleeps while the others wait for it in a collective."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bench.drawn_fleet import USUAL, write_fleet
from bench.drawn_runs import SECOND, START
from stepscope.analysis.hang.verdict import judge
from stepscope.core.events import HANG_VERDICT
from stepscope.sources.hang import hang_evidence
from stepscope.store.layout import RunFolder, Writer
from stepscope.store.reader import Past

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

TORCH = "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
LAST = 7
"""Number of the collective in which the others wait."""
QUIET = 12.0
"""Seconds after the last step at which the watchers write."""


def write_hung(path: Path, name: str, ranks: int = 64, cause: int = 9, steps: int = 700) -> None:
    """Write a job that hangs into its folder, with the verdict that follows from what its watchers saw."""
    per = 8
    write_fleet(path, name, nodes=ranks // per, per=per, steps=steps, stall="hung")
    at = START / SECOND + steps * USUAL + QUIET
    for rank in range(ranks):
        events = events_of(rank, ranks, at, step=steps - 1, is_cause=rank == cause)
        write(path / "events", events, f"node-{rank // per}")
    found = judge(hang_evidence(Past(RunFolder(path)), at + 1)).as_dict()
    place = {"time": micros(at + 1), "rank": 0, "attempt": 0, "verdict": found.pop("kind")}
    write(path / "events", [{"kind": HANG_VERDICT, **place, **found}], "node-0")


def micros(seconds: float) -> int:
    """Return a moment as the files of a run have it."""
    return round(seconds * SECOND)


def write(folder: Path, events: Iterable[Mapping[str, Any]], node: str = "node-0.00000000") -> None:
    """Append events to the file of a watcher."""
    path = folder / f"{Writer(node, 0).stem}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(event)}\n" for event in events)


def events_of(rank: int, ranks: int, at: float, *, is_cause: bool, step: int = 199) -> Iterator[dict[str, Any]]:
    """Yield what a watcher writes of one of so many ranks; the cause sleeps, and has not entered the collective."""
    inner = {"file": TORCH, "line": 3245, "function": "all_reduce"}
    outer = {"file": "/w/data.py" if is_cause else "/w/train.py", "line": 41 if is_cause else 88, "function": "step"}
    stacks = [{"thread": "0x1", "name": "MainThread", "frames": [outer] if is_cause else [inner, outer]}]
    waits = [{"thread": 1, "name": "python", "state": "S", "waits_in": "hrtimer_nanosleep" if is_cause else "do_poll"}]
    place = {"time": micros(at), "rank": rank, "attempt": 0, "step": step}
    yield {"kind": "hung", **place, "seconds": QUIET, "since": at - QUIET, "stacks": stacks, "threads": waits}
    yield {"kind": "flight_recorder", **place, "record": json.dumps(record(rank, LAST - is_cause, ranks))}


def record(rank: int, last: int, ranks: int = 4, version: str = "2.10") -> dict[str, Any]:
    """Return a dump of the flight recorder of a rank whose last collective has this number; LAST is not complete."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}}
    rows = [
        {
            "record_id": number - 1,
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "op_id": number,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": START * 1000 + number * 10**9,
            "input_sizes": [[64]],
            "input_dtypes": ["Float"],
            "output_sizes": [[64]],
            "output_dtypes": ["Float"],
            "state": "completed" if number < LAST else "scheduled",
            "retired": number < LAST,
            "is_p2p": False,
        }
        for number in range(1, last + 1)
    ]
    return {"version": version, "rank": rank, "pg_config": config, "pg_status": {}, "entries": rows}
