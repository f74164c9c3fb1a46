"""Many ranks of one job: their clocks, who waits for whom in which collective, and why a rank is late.

Ranks arrive at a collective at different times and leave it together. So the ends of the same collectives align the
clocks, and after that the starts show who came last: the others waited for that rank, inside the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.finding import INFO, WARNING, Finding
from stepscope.analysis.trace.collectives import PARTS, Extract, Matched, align, match

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.core.arrays import Floats


WORTH_RATIO = 0.02
"""Share of the window by which a straggler is late in total: kernels alone vary by 1 to 2 %."""
PROMINENT_RATIO = 0.5
"""Lateness relative to the latest rank from which another rank is a straggler too: half of all ranks are late."""
MUCH_RATIO = 0.1
"""Share of the window spent waiting for peers that is a warning."""
MOST_NAMED, MOST_COLLECTIVES = 8, 20
"""Ranks that a sentence names, and collectives that are listed, those with the largest skew."""
CAUSES = {
    "compute": (
        "more computation",
        "give all ranks equal work (lengths, experts, pipeline stages), or look at its clocks",
    ),
    "copy": ("longer copies", "look at its PCIe link and pinned memory"),
    "data": ("a slow DataLoader", "look at its storage and CPU; add workers"),
    "idle": ("a device that waits for its host", "look at its CPU, garbage collection and other processes on its node"),
}
"""Why a rank is late, and what to do, by what it did longer than the others before it arrived."""


def compare_ranks(extracts: list[Extract]) -> dict[str, Any]:
    """Return clocks, skew, waiting and stragglers of the ranks of one job; `findings` says it in sentences."""
    known = [one.rank for one in extracts if one.rank is not None]
    # If some are unknown or occur twice, the order of the files counts.
    ranks = known if len(set(known)) == len(extracts) else list(range(len(extracts)))
    matched = match(extracts)
    if not len(matched.key):
        reason = "not enough data: no collective that two of these ranks took part in"
        return {"ranks": ranks, "matched": 0, "note": reason, "findings": []}
    offset, spread = align(matched)
    first = int(np.argmax(np.isfinite(offset)))
    ahead = [
        round(own - offset[first]) + one.clock - extracts[first].clock if np.isfinite(own) else None
        for own, one in zip(offset.tolist(), extracts, strict=True)
    ]
    begun = np.array([one.window_start for one in extracts]) - offset
    since = (begun - begun[np.isfinite(begun)].min()) / 1000
    facts: dict[str, Any] = {
        "ranks": ranks,
        "matched": len(matched.key),
        "offset_us": [None if own is None else own / 1000 for own in ahead],
        "alignment_spread_us": spread / 1000,
        "window_start_us": [start if np.isfinite(start) else None for start in since.tolist()],
        **_waiting(matched, offset, ranks, max(*(one.window_ns for one in extracts), 1)),
    }
    return facts | {"findings": _findings(facts)}


def _waiting(matched: Matched, offset: Floats, ranks: list[int], window_ns: int) -> dict[str, Any]:
    """Return skew per collective, who waits for whom, and the stragglers with their causes."""
    arrival = matched.start - offset
    late, wait = arrivals(arrival, matched.end - matched.start)
    waits = np.zeros((len(ranks), len(ranks)))
    for rank in range(len(ranks)):
        np.add.at(waits[rank], late, wait[:, rank])
    behind = lateness(arrival)
    late_in_all = behind.sum(axis=0)
    least = max(WORTH_RATIO * window_ns, PROMINENT_RATIO * late_in_all.max(initial=0.0))
    slow = np.flatnonzero(late_in_all >= least)
    stragglers = [
        {
            "rank": ranks[place],
            "late_us": float(late_in_all[place]) / 1000,
            "late_percent": 100 * float(late_in_all[place]) / window_ns,
            "last": int((late == place).sum()),
            "matched": int(np.isfinite(arrival[:, place]).sum()),
            "others_waited_us": float(waits[:, place].sum()) / 1000,
            **cause(matched.before, behind, place, slow),
        }
        for place in slow[np.argsort(-late_in_all[slow], kind="stable")].tolist()
    ]
    known = np.isfinite(arrival)
    skew = np.where(known, arrival, -np.inf).max(axis=1) - np.where(known, arrival, np.inf).min(axis=1)
    widest = [
        {
            "collective": matched.key[row],
            "ranks": int(known[row].sum()),
            "skew_us": float(skew[row]) / 1000,
            "waited_us": float(wait[row].sum()) / 1000,
            "last_rank": ranks[late[row]],
        }
        for row in np.argsort(-skew, kind="stable")[:MOST_COLLECTIVES].tolist()
    ]
    return {
        "collectives": widest,
        "kinds": _kinds(matched, skew, wait),
        "waits_us": (waits / 1000).tolist(),
        "waited_us": (waits.sum(axis=1) / 1000).tolist(),
        "waited_percent": (100 * waits.sum(axis=1) / window_ns).tolist(),
        "stragglers": stragglers,
        "cost_percent": 100 * cost(arrival, slow) / window_ns,
    }


def arrivals(arrival: Floats, length: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Return per collective the last rank, and how long each waited: at most as long as its kernel ran."""
    known = np.isfinite(arrival)
    lowered = np.where(known, arrival, -np.inf)
    wait = np.minimum(lowered.max(axis=1)[:, None] - np.where(known, arrival, 0.0), np.where(known, length, 0.0))
    return np.argmax(lowered, axis=1), np.maximum(wait, 0.0)


def lateness(arrival: Floats) -> Floats:
    """Return by how much each rank came later than the median (of two, the earlier); 0 if it came before."""
    known = np.isfinite(arrival)
    middle = np.maximum(known.sum(axis=1, keepdims=True) - 1, 0) // 2
    usual = np.take_along_axis(np.sort(np.where(known, arrival, np.inf), axis=1), middle, axis=1)
    return np.maximum(np.where(known, arrival - usual, 0.0), 0.0)


def cost(arrival: Floats, slow: NDArray[np.intp]) -> float:
    """Return what the job would save, in ns, if the slow ranks came no later than the others."""
    if not len(slow):
        return 0.0
    all_in = np.where(np.isfinite(arrival), arrival, -np.inf)
    without = np.delete(all_in, slow, axis=1).max(axis=1, initial=-np.inf)
    known = np.isfinite(without)
    return float((all_in[known].max(axis=1) - without[known]).sum())


def cause(before: Floats, behind: Floats, place: int, slow: NDArray[np.intp]) -> dict[str, Any]:
    """Return what a rank did longer than the ranks that are not slow, before collectives to which it was late."""
    when = before[behind[:, place] > 0]
    own, others = when[:, place], np.delete(when, slow, axis=1)
    known = np.isfinite(others)
    usual = np.where(known, others, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    excess = np.where(np.isfinite(own), own - usual, 0.0).sum(axis=0)
    most = PARTS[int(np.argmax(excess))] if excess.max(initial=0.0) > 0 else None
    return {"cause": most, "excess_us": dict(zip(PARTS, (excess / 1000).tolist(), strict=True))}


def _kinds(matched: Matched, skew: Floats, wait: Floats) -> list[dict[str, Any]]:
    """Return per group and kind of collective how many there are, their skew, and how much of them is waiting."""
    spent = np.nan_to_num(matched.end - matched.start)
    facts = []
    for key in dict.fromkeys(matched.key):
        own = np.array([one == key for one in matched.key])
        facts.append(
            {
                "collective": key,
                "count": int(own.sum()),
                "skew_median_us": float(np.median(skew[own])) / 1000,
                "skew_max_us": float(skew[own].max()) / 1000,
                "total_us": float(spent[own].sum()) / 1000,
                "waiting_percent": 100 * float(wait[own].sum()) / max(float(spent[own].sum()), 1.0),
            }
        )
    return sorted(facts, key=lambda entry: -entry["total_us"])


def _findings(facts: dict[str, Any]) -> list[Finding]:
    found = []
    for reason in dict.fromkeys(entry["cause"] for entry in facts["stragglers"]):
        slow = [entry for entry in facts["stragglers"] if entry["cause"] == reason]
        why, remedy = CAUSES.get(reason, ("", ""))
        who = ", ".join(str(entry["rank"]) for entry in slow[:MOST_NAMED]) + ("…" if len(slow) > MOST_NAMED else "")
        text = (
            f"{'rank' if len(slow) == 1 else 'ranks'} {who} came late to collectives, up to "
            f"{slow[0]['late_us'] / 1000:.1f} ms in all ({slow[0]['late_percent']:.0f} % of the window); "
            + (f"cause: {why}" if why else "the trace does not show why")
        )
        gain = facts["cost_percent"] / 100 if len(slow) == len(facts["stragglers"]) else None
        found.append(Finding("straggler", text, WARNING, remedy, {"ranks": slow}, gain))
    share = float(np.mean(facts["waited_percent"])) / 100
    if share >= WORTH_RATIO:
        text = f"ranks spend {100 * share:.0f} % of the window in collectives that wait for another rank"
        remedy = "even out the work between collectives; communication itself is only the rest"
        evidence = {"waited_us": facts["waited_us"], "kinds": facts["kinds"][:5]}
        severity = WARNING if share >= MUCH_RATIO else INFO
        found.append(Finding("waiting_for_peers", text, severity, remedy, evidence, share))
    return found
