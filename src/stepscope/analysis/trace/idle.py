"""Why the device is idle: every nanosecond of the gaps between its events gets one cause, so that causes sum to them.

A gap ends with an event that the host launched. Until that launch began, the device waited for the host, and what the
host did meanwhile is the cause; after that the launch itself was under way. A gap that begins while the host waits for
the device (`.item()`, a stream synchronisation) is caused by that wait: it let the queue run empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.finding import WARNING, Finding
from stepscope.analysis.trace.breakdown import LEAST, MUCH, busy_time, severity, time_of
from stepscope.analysis.trace.data import LOADING
from stepscope.analysis.trace.spans import covered
from stepscope.analysis.trace.window import Intervals, TraceWindow, clip, common, gaps, named_like, together, total
from stepscope.core.trace import FIRST_DEVICE, KERNEL, OPERATOR, PYTHON, RUNTIME

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.analysis.trace.links import Links
    from stepscope.core.arrays import Integers, Mask
    from stepscope.core.trace import Trace


COMPILE, DATA, PEER, ALLOCATOR = "compile", "data", "peer", "allocator"
SYNCHRONISATION, OPERATORS, PYTHON_TIME, LAUNCH, UNKNOWN = "synchronisation", "operators", "python", "launch", "unknown"
CAUSES = {
    COMPILE: "code was being compiled or loaded",
    DATA: "the next batch was waited for",
    PEER: "the host waited for another rank",
    ALLOCATOR: "device memory was allocated or freed",
    SYNCHRONISATION: "the host had waited for the device and let its queue run empty",
    OPERATORS: "the host was busy with operators and launches",
    PYTHON_TIME: "the host was between operators: Python or unrecorded work",
    LAUNCH: "work was launched, but had not started yet",
    UNKNOWN: "the trace does not say what the host did",
}
"""Causes in order of precedence, and what each means."""
FUSE = "fuse or capture the work: torch.compile, CUDA graphs, fused optimizers, larger batches"
FINDINGS = {
    COMPILE: (
        "compile_bound",
        "warm up before profiling; avoid recompilation (mark dynamic shapes, cache compiled code)",
    ),
    PEER: ("waits_for_peer", "balance the work of the ranks, or replace barriers by asynchronous collectives"),
    ALLOCATOR: (
        "allocator_bound",
        "keep shapes stable, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, do not empty the cache",
    ),
    SYNCHRONISATION: (
        "synchronisation_bound",
        "do not read device values every step (.item(), .cpu(), print, nonzero); log them later",
    ),
    OPERATORS: ("host_bound", FUSE),
    PYTHON_TIME: (
        "python_bound",
        "take Python work out of the step, or move it to another thread; record stacks to see which it is",
    ),
    LAUNCH: ("launch_latency", "capture the step in a CUDA graph, or launch fewer, larger kernels"),
}
"""Finding and remedy of each cause; `data.findings` reports waiting for data."""
MANY_SHORT, FEWEST_KERNELS = 0.5, 50
"""Share of the kernels that are short in a launch-bound program, and the fewest kernels that allow to say so."""

COMPILING = re.compile(
    r"dynamo.*(?:compile|convert_frame|timed)|compile_fx|backend_compile|inductor.*(?:codegen|compile)|async_compile"
    r"|triton.*(?:compile|autotune)|aot_?dispatch|create_aot|autotun|ModuleLoad|ModuleGetFunction|LibraryLoad|nvrtc|hiprtc",
    re.IGNORECASE,
)
PEERING = re.compile(
    r"^(?:gloo|mpi|ucc):|barrier|ProcessGroup\w*::?wait|store(?:::|_)(?:get|wait)|::wait_tensor", re.IGNORECASE
)
ALLOCATING = re.compile(
    r"^(?:cuda|hip|musa|cu|zeMem|aclrt)_?(?:Malloc|Free|MemAlloc|MemFree|HostAlloc|MemCreate|MemMap|MemUnmap|MemRelease"
    r"|MemAddress\w*|MemSetAccess|MallocHost|FreeHost|MallocAsync|FreeAsync)|^empty_cache|_cuda_emptyCache",
    re.IGNORECASE,
)
WAITING = re.compile(
    r"^(?:cuda|hip|musa|cu|aclrt|ze)\w*Synchroni[sz]e|^(?:cuda|hip)Memcpy(?:WithStream)?$|^cuMemcpy\w*(?<!Async)$"
    r"|^aten::(?:item|_local_scalar_dense|is_nonzero|nonzero)$|^(?:cuda|hip)EventQuery$",
)
"""Calls in which the host waits for the device."""

SPECIAL = ((COMPILE, COMPILING), (DATA, LOADING), (PEER, PEERING), (ALLOCATOR, ALLOCATING))
"""Causes that are recognised by a name, in order of precedence."""

BUCKETS_US = (1, 5, 10, 50, 100, 500, 1000)
"""Edges of the histogram of kernel sizes, in µs."""
SHORT_US = 10.0
"""A kernel below this is about as short as its launch (cudaLaunchKernel: 4 to 10 µs in our sample traces)."""
SITES = 8
"""Waits that are listed."""


@dataclass(frozen=True)
class Idle:
    """The idle time of a window by cause, in ns."""

    window: TraceWindow
    causes: dict[str, int]
    """By cause; they sum to the idle time."""

    def share(self, *causes: str) -> float:
        """Return how much of the window some causes take, 0 to 1."""
        found = sum(self.causes.get(cause, 0) for cause in causes)
        return found / self.window.length if self.window.length else 0.0

    def facts(self) -> list[dict[str, Any]]:
        """Return the causes as plain values, largest first."""
        return [
            {"cause": cause, "means": CAUSES[cause], "time_us": time / 1000, "percent": 100 * self.share(cause)}
            for cause, time in sorted(self.causes.items(), key=lambda item: -item[1])
            if time
        ]


def why_idle(trace: Trace, window: TraceWindow, links: Links) -> Idle:
    """Return the idle time of the device in a window by cause."""
    idle = gaps(busy_time(trace), window)
    host = np.isin(trace.lane, launching(trace, links)) & (trace.kind < FIRST_DEVICE)
    if not len(idle.start) or not host.any():
        return Idle(window, {UNKNOWN: total(idle)})
    begun = launched(trace, links, idle)
    waited = Intervals(idle.start, begun)
    causes = {LAUNCH: int((idle.end - begun).sum())}
    taken, so_far = Intervals(idle.start[:0], idle.end[:0]), np.zeros(len(begun), np.int64)
    for cause, pattern in SPECIAL:
        among = host if cause != DATA else trace.kind <= PYTHON
        taken = together(taken, time_of(trace, named_like(trace, pattern, among)))
        reached = _within(taken, waited)
        causes[cause] = int((reached - so_far).sum())
        so_far = reached
    rest = begun - idle.start - so_far
    drained = _drained(idle, time_of(trace, named_like(trace, WAITING, host)))
    causes[SYNCHRONISATION] = int(rest[drained].sum())
    working = time_of(trace, host & ((trace.kind == OPERATOR) | (trace.kind == RUNTIME)))
    causes[OPERATORS] = int((_within(together(taken, working), waited) - so_far)[~drained].sum())
    causes[UNKNOWN if trace.thinned else PYTHON_TIME] = int(rest[~drained].sum()) - causes[OPERATORS]
    return Idle(window, causes)


def launching(trace: Trace, links: Links) -> NDArray[Any]:
    """Return the lanes of the host that launch work for the device; all with runtime calls if no launch is known."""
    calls = links.host[links.call[links.call >= 0]]
    rows = calls if len(calls) else np.flatnonzero(trace.kind == RUNTIME)
    return np.unique(trace.lane[rows])


def launched(trace: Trace, links: Links, idle: Intervals) -> Integers:
    """Return for each gap when the host began to launch the work that ended it; the end of the gap if unknown."""
    order = np.argsort(trace.start[links.device], kind="stable")
    first = np.searchsorted(trace.start[links.device][order], idle.end)
    known = first < len(order)
    call = np.full(len(first), -1, np.int64)
    call[known] = links.call[order[first[known]]]
    begun = idle.end.copy()
    begun[call >= 0] = trace.start[links.host[call[call >= 0]]]
    return np.asarray(np.clip(begun, idle.start, idle.end), np.int64)


def _within(intervals: Intervals, parts: Intervals) -> Integers:
    """Return how much of each part some intervals cover."""
    return covered(intervals, parts.end) - covered(intervals, parts.start)


def _drained(idle: Intervals, waits: Intervals) -> Mask:
    """Return which gaps begin while the host waits for the device."""
    place = np.searchsorted(waits.start, idle.start, side="right") - 1
    ends = np.append(waits.end, np.iinfo(np.int64).min)  # the last one stands for place -1
    return np.asarray(idle.start <= ends[place], bool)


def waiting_sites(trace: Trace, window: TraceWindow, links: Links) -> list[dict[str, Any]]:
    """Return where the host waits for the device, most costly first: call, operator, count, time, idle time, stack."""
    lanes = launching(trace, links)
    calls = named_like(trace, WAITING, (trace.kind == RUNTIME) & np.isin(trace.lane, lanes))
    rows = np.flatnonzero(calls & (trace.end > window.start) & (trace.start < window.end))
    idle = gaps(busy_time(trace), window)
    caused = _idle_after(trace, rows, idle)
    sites: dict[tuple[str, str], list[int]] = {}
    inner = np.flatnonzero(links.parent >= 0)
    around = dict(zip(links.host[inner].tolist(), links.host[links.parent[inner]].tolist(), strict=True))
    for row, cost in zip(rows.tolist(), caused.tolist(), strict=True):
        operator = trace.names[trace.name[around[row]]] if row in around else ""
        site = sites.setdefault((trace.names[trace.name[row]], operator), [0, 0, 0, row])
        site[0] += 1
        site[1] += int(trace.end[row] - trace.start[row])
        site[2] += cost
    ordered = sorted(sites.items(), key=lambda item: (-item[1][2], -item[1][1]))[:SITES]
    return [
        {
            "call": call,
            "operator": operator,
            "calls": count,
            "time_us": time / 1000,
            "idle_after_us": cost / 1000,
            "stack": stack_of(trace, row),
        }
        for (call, operator), (count, time, cost, row) in ordered
    ]


def _idle_after(trace: Trace, rows: NDArray[Any], idle: Intervals) -> Integers:
    """Return the length of the gap that begins during each wait; 0 if none does."""
    place = np.searchsorted(idle.start, trace.start[rows], side="left")
    inside = place < len(idle.start)
    inside[inside] = idle.start[place[inside]] <= trace.end[rows][inside]
    length = np.zeros(len(rows), np.int64)
    length[inside] = (idle.end - idle.start)[place[inside]]
    return length


def stack_of(trace: Trace, row: int, depth: int = 8) -> list[str]:
    """Return the Python functions around an event, innermost first; none where the trace has no stacks."""
    moment = trace.start[row]
    around = (trace.kind == PYTHON) & (trace.start <= moment) & (trace.end >= moment)
    own = around & (trace.lane == trace.lane[row])
    rows = np.flatnonzero(own if own.any() else around)
    if len(rows):
        return [trace.names[trace.name[one]] for one in rows[::-1][:depth]]
    found = trace.texts.get("Call stack")
    if found is None:
        return []
    holders = found.rows[(trace.start[found.rows] <= moment) & (trace.end[found.rows] >= moment)]
    holders = holders[trace.lane[holders] == trace.lane[row]]
    if not len(holders):
        return []
    text = trace.words[int(found.values[np.searchsorted(found.rows, holders[-1])])]
    return [line.strip() for line in text.split(";") if line.strip()][:depth]


def kernel_sizes(trace: Trace, window: TraceWindow) -> dict[str, Any]:
    """Return how long kernels are: counts and time by size, the median, and the share that is short."""
    chosen = (trace.kind == KERNEL) & (trace.end > window.start) & (trace.start < window.end)
    length = (trace.end - trace.start)[chosen] / 1000
    if not len(length):
        return {"kernels": 0, "median_us": None, "short_ratio": None, "histogram": []}
    place = np.searchsorted(BUCKETS_US, length, side="right")
    counts = np.bincount(place, minlength=len(BUCKETS_US) + 1)
    times = np.bincount(place, length, len(BUCKETS_US) + 1)
    edges = [0, *BUCKETS_US, None]
    return {
        "kernels": len(length),
        "median_us": float(np.median(length)),
        "short_ratio": float((length < SHORT_US).mean()),
        "histogram": [
            {"from_us": edges[at], "to_us": edges[at + 1], "kernels": int(counts[at]), "time_us": float(times[at])}
            for at in range(len(counts))
        ],
    }


def idle_for_data(trace: Trace, window: TraceWindow, waits: Intervals) -> float | None:
    """Return the share of the window in which the device is idle while data is waited for; None without a device."""
    if not trace.on_device.any() or not window.length:
        return None
    return total(common(gaps(busy_time(trace), window), clip(waits, window))) / window.length


def findings(idle: Idle, sizes: dict[str, Any], sites: list[dict[str, Any]]) -> list[Finding]:
    """Report every cause of idle time that matters, largest first, given `kernel_sizes` and `waiting_sites`."""
    found = []
    for cause, time in sorted(idle.causes.items(), key=lambda item: -item[1]):
        share = idle.share(cause)
        if cause in FINDINGS and share >= LEAST:
            kind, remedy = FINDINGS[cause]
            text = f"the device is idle {100 * share:.1f} % of the time because {CAUSES[cause]}"
            evidence: dict[str, Any] = {"idle_seconds": time / 1e9, "idle_ratio": share}
            if cause == SYNCHRONISATION and sites:
                evidence["sites"] = sites
                text += f"; most often in {sites[0]['operator'] or sites[0]['call']}"
            found.append(Finding(kind, text, severity(share), remedy, evidence, share))
    return found + _launch_bound(idle, sizes)


def _launch_bound(idle: Idle, sizes: dict[str, Any]) -> list[Finding]:
    """Return a finding if the device waits for the host while most kernels are as short as their launch."""
    share = idle.share(OPERATORS, LAUNCH, PYTHON_TIME)
    short = sizes["short_ratio"]
    few = short is None or short < MANY_SHORT or sizes["kernels"] < FEWEST_KERNELS
    if few or share < MUCH or idle.share(OPERATORS, LAUNCH) < share / 3:
        return []
    text = (
        f"launch-bound: {100 * short:.0f} % of {sizes['kernels']} kernels are shorter than {SHORT_US:.0f} µs "
        f"(median {sizes['median_us']:.1f} µs), and the device waits for the host {100 * share:.1f} % of the time"
    )
    evidence = {
        "short_ratio": short,
        "median_seconds": sizes["median_us"] / 1e6,
        "kernels": sizes["kernels"],
        "idle_ratio": share,
    }
    return [Finding("launch_bound", text, WARNING, FUSE, evidence, share)]
