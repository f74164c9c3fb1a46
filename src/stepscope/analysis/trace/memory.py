"""Memory of a trace: what the allocator held over time, the peak, and who owned it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.finding import INFO, WARNING, Finding
from stepscope.core.numbers import format_bytes
from stepscope.core.trace import ABSENT, RUNTIME

if TYPE_CHECKING:
    from stepscope.analysis.trace.links import Links
    from stepscope.core.arrays import Integers
    from stepscope.core.trace import Memory, Trace


POINTS = 400
"""Moments of a timeline that is drawn: about one per two pixels of a page."""
BEFORE = "allocated before the trace"
UNKNOWN = "outside any operator"
FRAGMENTED_RATIO = 0.3
"""Share of the reserved memory, at the peak of the reserve, that is not in use, from which it is worth a finding."""
FRAGMENTED_BYTES = 2**30
"""The same in bytes: less is not reported."""


def memory_timeline(trace: Trace, links: Links, points: int = POINTS) -> list[dict[str, Any]]:
    """Return one entry per device (-1 is the host): peak, its time and owners, and the memory over time.

    Owners are the operators that allocated what lived at the peak. Empty if the profiler did not record memory.
    """
    memory = trace.memory
    return [
        _device(trace, links, device, np.flatnonzero(memory.device == device), points)
        for device in np.unique(memory.device).tolist()
    ]


def _device(trace: Trace, links: Links, device: int, rows: Integers, points: int) -> dict[str, Any]:
    memory = trace.memory
    used = _in_use(memory, rows)
    reserved = memory.reserved[rows]
    peak = int(np.argmax(used))
    return {
        "device": device,
        "events": len(rows),
        "peak_bytes": int(used[peak]),
        "peak_us": (int(memory.time[rows[peak]]) + trace.origin) / 1000,
        "start_bytes": int(used[0] - memory.bytes[rows[0]]),
        "end_bytes": int(used[-1]),
        "peak_reserved_bytes": int(reserved.max()) if (reserved != ABSENT).any() else None,
        "allocated_bytes": int(memory.bytes[rows][memory.bytes[rows] > 0].sum()),
        "owners": _owners(trace, links, rows[: peak + 1], int(used[peak])),
        "timeline": _course(memory.time[rows] + trace.origin, used, reserved, points),
    }


def _in_use(memory: Memory, rows: Integers) -> Integers:
    """Return the bytes in use after each report: as recorded, or the sum of the reports, shifted to be at least 0."""
    recorded = memory.allocated[rows]
    if (recorded != ABSENT).all():
        return recorded
    summed = np.cumsum(memory.bytes[rows])
    return np.asarray(summed - min(0, int(summed.min())), dtype=np.int64)


def _owners(trace: Trace, links: Links, rows: Integers, peak: int) -> list[dict[str, Any]]:
    """Return what lived after the last of these reports, by the operator that allocated it, most bytes first.

    Empty if addresses are not recorded: it is then unknown what was released.
    """
    live: dict[int, int] = {}
    memory = trace.memory
    if (memory.address[rows] == ABSENT).any():
        return []
    columns = (rows, memory.address[rows], memory.bytes[rows])
    for row, address, size in zip(*(column.tolist() for column in columns), strict=True):
        if size > 0:
            live[address] = row
        else:
            live.pop(address, None)
    held: defaultdict[str, list[int]] = defaultdict(list)
    kept = np.array(sorted(live.values()), dtype=np.int64)
    for owner, size in zip(_operators_at(trace, links, kept), memory.bytes[kept].tolist(), strict=True):
        held[owner].append(size)
    owners: list[dict[str, Any]] = [
        {"name": name, "bytes": sum(sizes), "allocations": len(sizes)} for name, sizes in held.items()
    ]
    rest = peak - int(memory.bytes[kept].sum())
    if rest > 0:
        owners.append({"name": BEFORE, "bytes": rest, "allocations": None})
    return sorted(owners, key=lambda owner: -owner["bytes"])


def _operators_at(trace: Trace, links: Links, rows: Integers) -> list[str]:
    """Return the innermost operator or annotation that ran in the thread of each memory report."""
    host = np.flatnonzero(trace.kind[links.host] != RUNTIME)
    order = host[np.lexsort((trace.start[links.host[host]], trace.lane[links.host[host]]))]
    event = links.host[order]
    lanes, starts = trace.lane[event].astype(np.int64), trace.start[event]
    found = []
    for lane, time in zip(trace.memory.lane[rows].tolist(), trace.memory.time[rows].tolist(), strict=True):
        first, last = np.searchsorted(lanes, [lane, lane + 1])
        at = int(first + np.searchsorted(starts[first:last], time, side="right")) - 1
        place = int(order[at]) if at >= first else -1
        while place >= 0 and (trace.end[links.host[place]] < time or trace.kind[links.host[place]] == RUNTIME):
            place = int(links.parent[place])
        found.append(trace.names[trace.name[links.host[place]]] if place >= 0 else UNKNOWN)
    return found


def _course(time: Integers, used: Integers, reserved: Integers, points: int) -> dict[str, list[Any]]:
    """Return at most `points` moments; each holds the highest value of its span, so that no peak is lost."""
    first = np.unique(np.linspace(0, len(time), min(points, len(time)), endpoint=False).astype(np.int64))
    return {
        "time_us": (time[first] / 1000).tolist(),
        "used_bytes": np.maximum.reduceat(used, first).tolist(),
        "reserved_bytes": np.maximum.reduceat(reserved, first).tolist() if (reserved != ABSENT).any() else [],
    }


def findings(timelines: list[dict[str, Any]]) -> list[Finding]:
    """Name the peak of each device and its largest owner, and memory that is reserved and not used."""
    found = []
    for entry in timelines:
        if entry["device"] == ABSENT:
            continue
        device, peak, owners = entry["device"], entry["peak_bytes"], entry["owners"][:5]
        text = f"device {device} held {format_bytes(peak)} at its peak"
        if owners:
            name = owners[0]["name"]
            text += f", of which {format_bytes(owners[0]['bytes'])} {name if name == BEFORE else f'from {name}'}"
        evidence = {"device": device, "peak_bytes": peak, "owners": owners}
        found.append(Finding("memory_peak", text, INFO, "", evidence))
        reserved = entry["peak_reserved_bytes"] or 0
        unused = reserved - peak
        if unused >= max(FRAGMENTED_BYTES, FRAGMENTED_RATIO * reserved):
            text = f"device {device}: {format_bytes(unused)} of {format_bytes(reserved)} reserved never in use at once"
            remedy = "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
            evidence = {"device": device, "peak_bytes": peak, "reserved_bytes": reserved}
            found.append(Finding("memory_reserved", text, WARNING, remedy, evidence))
    return found
