"""Read the past of a run in a separate process, so that the dashboard stays small: its requests, and the answers.

The answer is one NumPy archive (no pickle): "facts" is JSON, the rest are columns.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from stepscope.core.vocabulary import canonical
from stepscope.store.layout import RunFolder
from stepscope.store.states import read_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.store.curves import Curves
    from stepscope.store.reader import Past

POINTS = 512
"""Buckets per graph."""
MACHINE_SECONDS = 240
"""Seconds of the machine's past that are read."""
STEPS = 64
"""Recent steps that are read of each rank."""
GRAPHS = 8
COUNTERS = frozenset(("epoch", "samples", "steps_total"))
"""Counters, which make no useful graph."""
MOST_MACHINE_NAMES = 4000
SECONDS = 120.0
"""Longest time that reading may take, in seconds."""


class PastRequest(TypedDict):
    """A request for past data."""

    names: list[str]
    """Metrics to read; empty: those that are shown first."""
    everything: bool
    """Whether to read recent steps and the machine too."""
    diagnosis: bool


def request(names: list[str] | None = None, *, everything: bool = False, diagnosis: bool = False) -> PastRequest:
    """Return a request."""
    return {"names": names or [], "everything": everything, "diagnosis": diagnosis}


def command(path: Path, asked: PastRequest) -> list[str]:
    """Return the command that answers; never `-m`, because files of the working directory could shadow our modules."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = f"import sys; sys.path.insert(0, {root!r}); from {__name__} import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", "-c", code, str(path), json.dumps(asked)]


def environment() -> dict[str, str]:
    """Return the environment of the reading process: one thread is enough."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def main(arguments: list[str]) -> int:
    """Read the run in the folder `arguments[0]` as the JSON `arguments[1]` asks; write the answer to stdout."""
    from stepscope.store.reader import Past

    sys.stdout.buffer.write(answer(Past(RunFolder(Path(arguments[0]))), json.loads(arguments[1])))
    return 0


def answer(past: Past, asked: PastRequest) -> bytes:
    """Return the requested data as an archive."""
    from stepscope.store.curves import Ask, curves
    from stepscope.views.metric_list import metric_list

    metrics = metric_list(past)["metrics"]
    facts: dict[str, Any] = {"metrics": [[one["name"], one["unit"], one["source"]] for one in metrics]}
    names = asked["names"] or first_names(metrics)
    facts["names"] = names
    columns = _columns(curves(past, Ask(tuple(names), POINTS)))
    if asked["everything"]:
        facts |= about(past)
        columns |= _recent(past, [one["name"] for one in metrics if one["source"] == "phase"], facts["step"])
        sampled = [one["name"] for one in metrics if one["source"] == "machine"][:MOST_MACHINE_NAMES]
        columns |= _machine(past, sampled)
    if asked["diagnosis"]:
        from stepscope.sources.diagnosis import diagnose

        facts["diagnosis"] = diagnose(past)
    return packed(facts, columns)


def first_names(metrics: Iterable[dict[str, Any]]) -> list[str]:
    """Return the metrics that have a graph unless others are chosen: the best known of the training."""
    own = [one for one in metrics if one["source"] == "training" and canonical(one["name"]) not in COUNTERS]
    best = [one["name"] for one in own if one["important"]]
    return list(dict.fromkeys([*best, *(one["name"] for one in own)]))[:GRAPHS]


def about(past: Past) -> dict[str, Any]:
    """Return facts about the run, and its pace."""
    from stepscope.views.pace import pace_of
    from stepscope.views.run_card import card
    from stepscope.views.run_list import standing

    known, stands = card(past), standing(read_nodes(RunFolder(past.path))[0])
    kept = {key: known[key] for key in ("recent_rate", "epoch", "total_steps")}
    return {**kept, "step": stands["step"], "pace": pace_of(past).places()}


def _recent(past: Past, phases: list[str], last: int | None) -> dict[str, Any]:
    from stepscope.store.curves import Ask, curves

    if last is None:
        return {}
    steps = (max(0, last - STEPS + 1), last)
    return _of_points("recent", curves(past, Ask(("step_seconds", *phases), STEPS * 64, steps=steps)).points)


def _machine(past: Past, names: list[str]) -> dict[str, Any]:
    """Return the last minutes of the samples."""
    from stepscope.store.curves import Ask, curves

    nodes, _ = read_nodes(RunFolder(past.path))
    end = max((rank.ended or node.time for node in nodes for rank in node.ranks.values()), default=0)
    if not names or not end:
        return {}
    times = (end - MACHINE_SECONDS * 1_000_000, end + 60_000_000)
    return _of_points("machine", curves(past, Ask(tuple(names), MACHINE_SECONDS * 2, times=times)).points)


def _of_points(prefix: str, points: Any) -> dict[str, Any]:
    kept = ("name", "rank", "attempt", "seq", "step", "time", "value")
    return {f"{prefix}_names": np.array(points.names, str), **{f"{prefix}_{key}": getattr(points, key) for key in kept}}


def _columns(found: Curves) -> dict[str, Any]:
    kept = ("name", "rank", "attempt", "last_seq", "last_step", "last_time", "min", "max", "mean", "last")
    blocks = {f"blocks_{key}": getattr(found.blocks, key) for key in (*kept, "count", "nonfinite")}
    return {**_of_points("points", found.points), "blocks_names": np.array(found.blocks.names, str), **blocks}


def packed(facts: dict[str, Any], columns: dict[str, Any]) -> bytes:
    """Return facts and columns as one archive."""
    buffer = io.BytesIO()
    told = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    np.savez(buffer, facts=told, **columns)
    return buffer.getvalue()


def opened(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return facts and columns of an answer."""
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        columns = {key: archive[key] for key in archive.files if key != "facts"}
        return json.loads(archive["facts"].tobytes()), columns
