"""The machine of a run: its nodes and devices, their last values, and which metrics share a chart."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.core.vocabulary import matches
from stepscope.sources.attempts import counts_of, nodes_of
from stepscope.views.buckets import Buckets, buckets_of
from stepscope.views.overview import attempts, machine_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.store.reader import Past

POINTS = 10
"""Buckets from which the last value is read."""
MOST_NAMES = 64
"""Maximum metrics of one chart: the limit of one request."""
MOST_DEVICES = 1024


class Chart(NamedTuple):
    """Metrics that are drawn together."""

    group: str
    title: str
    unit: str
    patterns: tuple[str, ...]
    """The first pattern that matches any metric is drawn; with `every`, all of them."""
    limit: str | None = None
    """Metric that is the upper bound of the others."""
    every: bool = True


def _traffic(start: str) -> tuple[str, str]:
    return f"{start}received_bytes_per_second", f"{start}sent_bytes_per_second"


def _of_processes(metric: str) -> tuple[str, str]:
    return f"process/*/tree_{metric}", f"process/*/{metric}"


CHARTS = (
    Chart("gpu", "GPU use", "ratio", ("gpu/*/utilization_ratio",)),
    Chart("gpu", "GPU memory", "bytes", ("gpu/*/memory_used_bytes",), "gpu/*/memory_total_bytes"),
    Chart("gpu", "GPU temperature", "celsius", ("gpu/*/temperature_celsius", "gpu/*/memory_temperature_celsius")),
    Chart("gpu", "GPU power", "watts", ("gpu/*/power_watts",), "gpu/*/power_limit_watts"),
    Chart("gpu", "GPU clocks", "hertz", ("gpu/*/sm_clock_hertz", "gpu/*/memory_clock_hertz")),
    Chart("gpu", "PCIe", "bytes/second", _traffic("gpu/*/pcie_")),
    Chart("cpu", "CPU use", "ratio", ("cpu/usage_ratio", "cpu/iowait_ratio", "cpu/steal_ratio")),
    Chart("cpu", "CPU per core", "ratio", ("cpu/*/usage_ratio",)),
    Chart("cpu", "Load", "", ("cpu/load_1m", "cpu/load_5m", "cpu/load_15m"), "cpu/count"),
    Chart("memory", "Memory", "bytes", ("cgroup/memory_used_bytes", "memory/used_bytes"), "memory/total_bytes"),
    Chart("memory", "Swap", "bytes", ("swap/used_bytes",), "swap/total_bytes"),
    Chart("memory", "Memory of the processes", "bytes", _of_processes("memory_bytes"), every=False),
    Chart("cpu", "CPU of the processes", "ratio", _of_processes("cpu_ratio"), every=False),
    Chart("disk", "Disk", "bytes/second", ("disk/read_bytes_per_second", "disk/write_bytes_per_second")),
    Chart("disk", "Disk busy", "ratio", ("disk/busy_ratio",)),
    Chart("disk", "Disk in use", "ratio", ("disk/used_ratio",)),
    Chart("network", "Network", "bytes/second", (*_traffic("network/"), *_traffic("network/infiniband_"))),
    Chart("network", "Network errors", "packets/second", ("network/errors_per_second", "network/drops_per_second")),
    Chart("pressure", "Pressure", "ratio", ("pressure/*",)),
    Chart("power", "Power", "watts", ("power/machine_watts", "power/cpu_watts", "power/dram_watts", "power/*/watts")),
    Chart("power", "Temperature", "celsius", ("temperature/cpu_celsius", "temperature/*/celsius")),
)
"""The charts of a machine, in order. Any other metric gets its own chart, under its own name."""


def machine_view(past: Past) -> dict[str, Any]:
    """Return nodes, devices, processes with their last values, and the charts."""
    names = sorted(machine_names(past, counts_of(past)))
    last = {name: buckets_of(series) for name, series in past.overview(names, POINTS).items()} if names else {}
    machines = past.machines()
    devices = {what: name for machine in machines for what, name in machine.devices.items()}
    kept = ("node", "attempt", "devices", "absent")
    return {
        "nodes": [{key: getattr(one, key) for key in kept} for one in machines],
        "gpus": _gpus(last, devices, {-1 - at: one.node for at, one in enumerate(machines)}),
        "processes": _processes(last, attempts(nodes_of(past))),
        "groups": charts(names, last),
    }


def charts(names: Iterable[str], last: dict[str, Buckets]) -> list[dict[str, Any]]:
    """Return which names are drawn together, in order; unused swap is left out."""
    known = list(names)
    used: set[str] = set()
    found: list[tuple[Any, ...]] = []
    for chart in CHARTS:
        own, covered = _matched(chart, [name for name in known if name not in used])
        limits = [name for name in known if chart.limit and matches(chart.limit, name)]
        used.update(covered, limits)
        if chart.title == "Swap" and not any((last[name].highest() or 0) > 0 for name in own if name in last):
            continue
        for at in range(0, len(own), MOST_NAMES):  # several charts if one request may not have all lines
            part = own[at : at + MOST_NAMES]
            found.append((chart.group, chart.title, chart.unit, part, limits[0] if limits else None))
    found += [(name.partition("/")[0], name, "", [name], None) for name in known if name not in used]
    return [dict(zip(("group", "title", "unit", "names", "limit"), row, strict=True)) for row in found]


def _matched(chart: Chart, names: list[str]) -> tuple[list[str], list[str]]:
    """Return the names that a chart draws, and all that it covers."""
    parts = [[name for name in names if matches(pattern, name)] for pattern in chart.patterns]
    covered = list(dict.fromkeys(chain(*parts)))
    return (covered if chart.every else next((part for part in parts if part), [])), covered


def _gpus(last: dict[str, Buckets], devices: dict[str, str], nodes: dict[int, str]) -> list[dict[str, Any]]:
    found: dict[tuple[int, str], dict[str, float | None]] = {}
    for name, values in last.items():
        parts = name.split("/", 2)
        if parts[0] != "gpu" or len(parts) != 3 or not parts[1].isdecimal():
            continue
        for rank in sorted({int(rank) for rank in values.rank.tolist()}):
            if len(found) < MOST_DEVICES or (rank, parts[1]) in found:
                found.setdefault((rank, parts[1]), {})[parts[2]] = values.select(values.rank == rank).newest()
    return [
        {"index": int(index), "name": devices.get(f"gpu/{index}", ""), "node": nodes.get(rank, ""), "metrics": metrics}
        for (rank, index), metrics in sorted(found.items(), key=lambda entry: (-entry[0][0], int(entry[0][1])))
    ]


def _processes(last: dict[str, Buckets], ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    newest = max((rank["attempt"] for rank in ranks), default=0)
    found = []
    for rank in [one for one in ranks if one["attempt"] == newest][:MOST_DEVICES]:
        start = f"process/{rank['rank']}/"
        metrics = {
            name.removeprefix(start): values.newest()
            for name, values in last.items()
            if name.startswith(start) and "/worker/" not in name
        }
        kept = {key: rank[key] for key in ("rank", "pid", "state", "node", "step")}
        found.append({**kept, "metrics": metrics})
    return found
