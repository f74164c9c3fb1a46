"""What is to be said about one rank's trace: its breakdown and the causes of its idle time, as findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.analysis.finding import INFO, WARNING, Finding
from stepscope.analysis.trace import idle as why

if TYPE_CHECKING:
    from stepscope.analysis.trace.breakdown import Breakdown

LEAST = 0.05
"""Share of the window from which on a cause of idle time is worth a word."""
MUCH = 0.2
"""Share of the window from which on it is a warning."""
LEAST_EXPOSED = 0.1
"""Share of the window from which on communication that nothing hides is worth a word."""
UNHIDDEN = 0.005
"""Share of communication overlapped with computation that counts as none."""
MANY_SHORT, FEWEST_KERNELS = 0.5, 50
"""Share of the kernels that are short in a launch-bound program; and kernels below which nobody can say so."""

REMEDIES = {
    why.COMPILE: "warm up before profiling; avoid recompilation (mark dynamic shapes, cache compiled code)",
    why.PEER: "balance the work of the ranks, or replace barriers by asynchronous collectives",
    why.ALLOCATOR: "keep shapes stable, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, do not empty the cache",
    why.SYNCHRONISATION: "do not read device values every step (.item(), .cpu(), print, nonzero); log them later",
    why.OPERATORS: "fuse or capture the work: torch.compile, CUDA graphs, fused optimizers, larger batches",
    why.PYTHON_TIME: "take Python work out of the step, or move it to another thread; record stacks to see which it is",
    why.LAUNCH: "capture the step in a CUDA graph, or launch fewer, larger kernels",
}
KINDS = {
    why.COMPILE: "compile_bound",
    why.PEER: "waits_for_peer",
    why.ALLOCATOR: "allocator_bound",
    why.SYNCHRONISATION: "synchronisation_bound",
    why.OPERATORS: "host_bound",
    why.PYTHON_TIME: "python_bound",
    why.LAUNCH: "launch_latency",
}


def idle_findings(idle: why.Idle, sizes: dict[str, Any], sites: list[dict[str, Any]]) -> list[Finding]:
    """Return a finding for every cause of idle time that matters, largest first."""
    found = []
    for cause, time in sorted(idle.causes.items(), key=lambda item: -item[1]):
        share = idle.share(cause)
        if cause in KINDS and share >= LEAST:
            text = f"the device is idle {100 * share:.1f} % of the time because {why.CAUSES[cause]}"
            evidence: dict[str, Any] = {"idle_seconds": time / 1e9, "idle_ratio": share}
            if cause == why.SYNCHRONISATION and sites:
                evidence["sites"] = sites
                text += f"; most often in {sites[0]['operator'] or sites[0]['call']}"
            found.append(Finding(KINDS[cause], text, _severity(share), REMEDIES[cause], evidence, share))
    return found + _launch_bound(idle, sizes)


def _launch_bound(idle: why.Idle, sizes: dict[str, Any]) -> list[Finding]:
    """Return a finding if the device waits for the host while most kernels are as short as their launch."""
    share = idle.share(why.OPERATORS, why.LAUNCH, why.PYTHON_TIME)
    short = sizes["short_ratio"]
    if (
        short is None
        or short < MANY_SHORT
        or sizes["kernels"] < FEWEST_KERNELS
        or share < MUCH
        or idle.share(why.OPERATORS, why.LAUNCH) < share / 3
    ):
        return []
    text = (
        f"launch-bound: {100 * short:.0f} % of {sizes['kernels']} kernels are shorter than {why.SHORT_US:.0f} µs "
        f"(median {sizes['median_us']:.1f} µs), and the device waits for the host {100 * share:.1f} % of the time"
    )
    evidence = {
        "short_ratio": short,
        "median_seconds": sizes["median_us"] / 1e6,
        "kernels": sizes["kernels"],
        "idle_ratio": share,
    }
    return [Finding("launch_bound", text, WARNING, REMEDIES[why.OPERATORS], evidence, share)]


def communication_findings(parts: Breakdown) -> list[Finding]:
    """Return how much communication nothing hides."""
    length = parts.window.length
    share = parts.exposed_communication / length if length else 0.0
    if share < LEAST_EXPOSED:
        return []
    hidden = 1 - parts.exposed_communication / parts.communication
    text = f"communication takes {100 * parts.communication / length:.1f} % of the time, "
    if hidden < UNHIDDEN:
        text += "and nothing is computed meanwhile"
    else:
        text += f"{100 * share:.1f} % with nothing computed meanwhile ({100 * hidden:.0f} % of it is hidden)"
    evidence = {
        "communication_ratio": parts.communication / length,
        "exposed_ratio": share,
        "overlap_ratio": hidden,
    }
    remedy = "overlap it with compute (bucketing, prefetch), send less (compression), or find the slow rank"
    return [Finding("exposed_communication", text, _severity(share), remedy, evidence, share)]


def copy_findings(parts: Breakdown) -> list[Finding]:
    """Return how much time goes to copies that nothing hides."""
    share = parts.exposed_memcpy / parts.window.length if parts.window.length else 0.0
    if share < LEAST:
        return []
    text = f"copies and fills take {100 * share:.1f} % of the time with nothing else running"
    remedy = "pin host memory and copy with non_blocking=True on a stream of its own, or keep the data on the device"
    return [Finding("exposed_copies", text, _severity(share), remedy, {"exposed_ratio": share}, share)]


def _severity(share: float) -> str:
    return WARNING if share >= MUCH else INFO
