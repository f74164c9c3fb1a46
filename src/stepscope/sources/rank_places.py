"""Where each rank is: its coordinates in the job, and its GPU with the newest samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.coordinates import BY_HAND, PLACED
from stepscope.core.events import ours

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.store.reader import Past

POINTS = 10
"""Buckets from which the newest sample is read."""
SAMPLES = ("temperature_celsius", "throttle_")
"""Metrics of a GPU that are shown with its rank."""


@dataclass(frozen=True)
class Whereabouts:
    """The place of one rank; None and empty where unknown."""

    coordinates: Mapping[str, int] = field(default_factory=dict)
    """Such as `{"data": 3, "tensor": 1, "pipeline": 0}`."""
    gpu: int | None = None
    """Index on its node."""
    gpu_name: str = ""
    temperature: float | None = None
    """Degrees Celsius, the newest sample."""
    throttled: tuple[str, ...] = ()
    """Why its clocks are held down now."""


def places_of(past: Past, attempt: int, nodes: Mapping[int, str]) -> dict[int, Whereabouts]:
    """Return the place of each rank of an attempt; `nodes` has the node of each rank."""
    told = _told(past.events(), attempt)
    local = _local_ranks(nodes) | {rank: facts["local_rank"] for rank, facts in told.items() if "local_rank" in facts}
    machines = {machine.node: machine.devices for machine in past.machines()}
    samples = _samples(past)
    numbers = _node_numbers(nodes, told, {number for number, _ in samples})
    found = {}
    for rank, node in nodes.items():
        gpu = local[rank]
        values = samples.get((numbers[node], gpu)) if node in numbers else None
        name = machines.get(node, {}).get(f"gpu/{gpu}", "")
        coordinates = told.get(rank, {}).get("coordinates", {})
        found[rank] = (
            Whereabouts(coordinates, gpu, name, *_condition(values)) if values or name else Whereabouts(coordinates)
        )
    return found


def _condition(values: Mapping[str, float] | None) -> tuple[float | None, tuple[str, ...]]:
    """Return temperature and reasons of throttling."""
    known = values or {}
    why = (
        name.removeprefix("throttle_") for name, value in known.items() if name.startswith("throttle_") and value > 0
    )
    return known.get("temperature_celsius"), tuple(sorted(reason.replace("_", " ") for reason in why))


def _told(events: Iterable[Mapping[str, Any]], attempt: int) -> dict[int, dict[str, Any]]:
    """Return what the ranks said about their places, the newest last; what a program said by hand counts most."""
    said = [
        event
        for event in ours(events)
        if event["kind"] == PLACED and event.get("rank") is not None and event.get("attempt") == attempt
    ]
    found: dict[int, dict[str, Any]] = {}
    for event in sorted(said, key=lambda event: event.get("source") == BY_HAND):
        facts = found.setdefault(event["rank"], {"coordinates": {}})
        facts |= {key: event[key] for key in ("local_rank", "node_rank") if isinstance(event.get(key), int)}
        given = event.get("coordinates")
        if isinstance(given, dict):
            facts["coordinates"] |= {str(name)[:40]: at for name, at in given.items() if isinstance(at, int)}
    return found


def _local_ranks(nodes: Mapping[int, str]) -> dict[int, int]:
    """Return the place of each rank among those of its node, in their order."""
    seen: dict[str, int] = {}
    found = {}
    for rank in sorted(nodes):
        found[rank] = seen.get(nodes[rank], 0)
        seen[nodes[rank]] = found[rank] + 1
    return found


def _node_numbers(nodes: Mapping[int, str], told: Mapping[int, Mapping[str, Any]], sampled: set[int]) -> dict[str, int]:
    """Return the number under which each node's samples are recorded, where that is certain."""
    named = {
        nodes[rank]: int(facts["node_rank"]) for rank, facts in told.items() if "node_rank" in facts and rank in nodes
    }
    ordered = list(dict.fromkeys(nodes[rank] for rank in sorted(nodes)))
    if len(named) == len(ordered) and len(set(named.values())) == len(named):
        return named
    return {node: at for at, node in enumerate(ordered)} if len(sampled) == len(ordered) else {}


def _samples(past: Past) -> dict[tuple[int, int], dict[str, float]]:
    """Return the newest samples of every GPU, by the number of its node and its index."""
    found: dict[tuple[int, int], dict[str, float]] = {}
    newest: dict[tuple[int, int, str], float] = {}
    names = [name for name in past.names() if _is_shown(name)]
    for name, series in (past.overview(names, POINTS) if names else {}).items():
        _, index, metric = name.split("/", 2)
        parts = series.buckets
        columns = (
            (series.rank, series.time, series.value) if parts is None else (parts.rank, parts.last_time, parts.last)
        )
        for rank, time, value in zip(*(column.tolist() for column in columns), strict=True):
            key = (-1 - rank, int(index), metric)
            if rank < 0 and time >= newest.get(key, -np.inf) and np.isfinite(value):
                newest[key] = time
                found.setdefault(key[:2], {})[metric] = value
    return found


def _is_shown(name: str) -> bool:
    parts = name.split("/", 2)
    return len(parts) == 3 and parts[0] == "gpu" and parts[1].isdecimal() and parts[2].startswith(SAMPLES)
