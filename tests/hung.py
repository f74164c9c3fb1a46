"""A run of several ranks that hangs: what its watchers wrote while one rank slept and the others waited for it."""

from __future__ import annotations

import json

from stepscope.store.layout import RunFolder, Writer
from stepscope.store.reader import Past
from tests.exporters.recorded import CREATED
from tests.fleet import fleet

AT = CREATED / 1e6 + 60
"""When the ranks stood still, in seconds since 1970."""
TORCH = "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"


def micros(seconds):
    """Return a moment as the files of a run have it."""
    return round(seconds * 1e6)


def hung_fleet(root, cause=1, judged=True, run="run-1"):
    """Make a job of 4 ranks on 2 nodes of which all wait for one; `judged`: its watchers came to a verdict."""
    past = fleet(root, run=run, stall="hung")
    folder = past.path / "events"
    events = [event for rank in range(4) for event in _events(rank, rank == cause)]
    if judged:
        events.append(verdict(cause))
    write(folder, events)
    return Past(RunFolder(past.path))


def write(folder, events, node="node-0.00000000"):
    """Append events to the file of a watcher."""
    path = folder / f"{Writer(node, 0).stem}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(event)}\n" for event in events)


def verdict(cause=1):
    """Return the verdict as the event that a watcher writes."""
    rest = [rank for rank in range(4) if rank != cause]
    shows = {"steps": ["no step ended on ranks 0-3 for 12 s"], "stacks": [f"rank {cause} sleeps at data.py:41"]}
    said = {"verdict": "never_arrived", "ranks": [cause], "waiting": rest, "confidence": 0.99, "evidence": shows}
    text, remedy = f"Rank {cause} never entered all_reduce: it sleeps at data.py:41.", "look at the line"
    place = {"time": micros(AT + 2), "rank": -1, "attempt": 0}
    return {"kind": "hang_verdict", **place, "text": text, "remedy": remedy, **said}


def moves_again():
    """Return the verdict that ends it."""
    text = "The ranks move again."
    return {"kind": "hang_verdict", "time": micros(AT + 9), "rank": -1, "attempt": 0, "verdict": "none", "text": text}


def _events(rank, is_cause):
    inner = {"file": TORCH, "line": 3245, "function": "all_reduce"}
    outer = {"file": "/w/data.py" if is_cause else "/w/train.py", "line": 41 if is_cause else 88, "function": "step"}
    stacks = [{"thread": "0x1", "name": "MainThread", "frames": [outer] if is_cause else [inner, outer]}]
    waits = [{"thread": 1, "name": "python", "state": "S", "waits_in": "hrtimer_nanosleep" if is_cause else "do_poll"}]
    place = {"time": micros(AT), "rank": rank, "attempt": 0, "step": 199}
    yield {"kind": "hung", **place, "seconds": 12.0, "since": AT - 12, "stacks": stacks, "threads": waits}
    yield {"kind": "flight_recorder", **place, "record": json.dumps(record(rank, 6 if is_cause else 7))}


def record(rank, last, world=4, version="2.10"):
    """Return a dump of the flight recorder of a rank whose last collective has this number; the 7th is not complete."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}}
    rows = [
        {
            "record_id": number - 1,
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "op_id": number,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": int((AT - 20 + number) * 1e9),
            "input_sizes": [[64]],
            "input_dtypes": ["Float"],
            "output_sizes": [[64]],
            "output_dtypes": ["Float"],
            "state": "completed" if number < 7 else "scheduled",
            "retired": number < 7,
            "is_p2p": False,
        }
        for number in range(1, last + 1)
    ]
    return {"version": version, "rank": rank, "pg_config": config, "pg_status": {}, "entries": rows}
