"""The ranks of a run as plain data, the worst first: rows, groups, a map over the steps, one step of one rank."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis import clocks
from stepscope.analysis.node_fates import fate_sentence
from stepscope.core.node_names import short_node
from stepscope.core.numbers import format_count, format_items, format_value
from stepscope.core.vocabulary import MEETING, phase_place
from stepscope.sources.clocks import clock_offsets
from stepscope.sources.fates import fates_of
from stepscope.sources.hang import recorded_verdict
from stepscope.sources.rank_table import LATE, RankRow, RankSheet, rank_map, rank_table
from stepscope.views.nodes import node_notes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from stepscope.core.arrays import Floats
    from stepscope.store.reader import Past

NODE = "node"
ALL_KEEP_UP = "no rank is late"
LATE_SHARE = 0.05
"""A rank is called late if it is late by this share of a step."""
LATE_SECONDS = 1e-3
"""Seconds below which no rank is called late."""
ENDED = ("killed", "oom-killed", "preempted", "interrupted")
"""States of ranks that something ended."""
NAMED = 3
"""Most ranks of one kind that the sentence names."""
DIGITS = 3
"""Significant digits of the values of a map."""
DEFINITIONS = {
    True: "late: a rank's step without the phases in which it may wait for others (backward, communication), "
    "beyond the median of the other ranks",
    False: "late: a rank's step time beyond the median of the other ranks; the phases of its steps were not measured",
}


def ranks_view(past: Past, steps: tuple[int, int] | None = None, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the ranks of the newest attempt, the worst first, one sentence about them, and why they hang if they do.

    Figures are means per step over `steps`, by default over the newest steps.
    """
    table, verdict = rank_table(past, steps, names), recorded_verdict(past)
    fates, offsets = fates_of(past), clock_offsets(past)
    notes = node_notes(fates, offsets, table.attempt)
    alone = _exceptions(table)
    rows = [{**_row(row, table, alone), "host_note": notes.get(row.node, "")} for row in ordered(table)]
    return {
        "attempt": table.attempt,
        "nodes": len({row.node for row in table.rows}),
        "first_step": table.steps[0] if table.steps[1] >= table.steps[0] else None,
        "last_step": table.steps[1] if table.steps[1] >= table.steps[0] else None,
        "usual_seconds": table.usual_seconds,
        "usual_phases": dict(table.usual_phases),
        "summary": summary(table, fate_sentence(fates, table.attempt)),
        "hang": None if verdict is None else verdict.as_dict(),
        "clocks": clocks.sentence(offsets),
        "definition": DEFINITIONS[table.is_own],
        "late": [row["rank"] for row in rows if row["is_late"]],
        "dimensions": dimensions(table.rows),
        "rows": rows,
    }


def sorted_rows(rows: Sequence[dict[str, Any]], sort: str = "late") -> list[dict[str, Any]]:
    """Return rows of `ranks_view` in an order: the worst first, by rank, or by state."""
    if sort == "late":
        return list(rows)
    by_state = [(row["is_well"], row["stall"], row["state"]) if sort == "state" else () for row in rows]
    return [row for _, row in sorted(zip(by_state, rows, strict=True), key=lambda pair: (*pair[0], pair[1]["rank"]))]


def ordered(table: RankSheet) -> list[RankRow]:
    """Return the rows, the worst first: the cause of a hang or a crash, those that need attention, then the latest."""
    alone = _exceptions(table)
    return sorted(
        table.rows,
        key=lambda row: (row.rank not in table.blamed, row.rank not in alone, -(row.late_seconds or 0.0), row.rank),
    )


def is_late(row: RankRow, usual: float | None) -> bool:
    """Return whether a rank is late enough to be named."""
    late = row.late_seconds or 0.0
    return usual is not None and late >= max(LATE_SECONDS, LATE_SHARE * usual)


def summary(table: RankSheet, nodes_told: str = "") -> str:
    """Return one sentence: how many ranks, how far, what happened to nodes, and which rank needs attention."""
    nodes = len({row.node for row in table.rows if row.node})
    parts = [format_items(len(table.rows), "rank") + (f" on {format_items(nodes, 'node')}" if nodes else "")]
    reached = [row.step for row in table.rows if row.step is not None]
    if reached:
        low, high = min(reached), max(reached)
        span = f"step {format_count(high)}" if low == high else f"steps {format_count(low)} to {format_count(high)}"
        parts[0] += f", {span}"
    exceptional = [told for told in (nodes_told, *_exceptional(table)) if told]
    late = _latest(table)
    return "; ".join([*parts, *exceptional, *([late] if late and (late != ALL_KEEP_UP or not exceptional) else [])])


def _latest(table: RankSheet) -> str:
    usual = table.usual_seconds
    known = [row for row in table.rows if row.late_seconds is not None]
    if usual is None or len(known) < 2:
        return "" if len(table.rows) < 2 else "no step times were recorded"
    worst = max(known, key=lambda row: (row.late_seconds or 0.0, -row.rank))
    if not is_late(worst, usual):
        return ALL_KEEP_UP
    text = f"{named(worst)} is late by {format_value(worst.late_seconds, 'seconds')}"
    text += f" in a step of {format_value(worst.step_seconds or usual, 'seconds')}"
    others = sum(is_late(row, usual) for row in known) - 1
    text += f", most of it in {worst.slowest_phase}" if worst.slowest_phase else ""
    return text + (f"; {format_items(others, 'other rank')} late too" if others else "")


def named(row: RankRow) -> str:
    """Return a rank with its node, in words."""
    return f"rank {row.rank} on {short_node(row.node)}" if row.node else f"rank {row.rank}"


def _exceptions(table: RankSheet) -> set[int]:
    """Return the ranks that need attention: the cause of a hang or a crash, and those in a state of their own."""
    states = Counter(_standing(row) for row in table.rows if not row.is_well)
    most = len(table.rows) // 2
    rare = {row.rank for row in table.rows if not row.is_well and states[_standing(row)] <= most}
    return {*table.blamed, *rare}


def _standing(row: RankRow) -> str:
    return row.stall or row.state


def _exceptional(table: RankSheet) -> list[str]:
    """Return who is the cause, and how many ranks are in which bad state."""
    found = [f"{named(row)} {table.blamed[row.rank]}" for row in table.rows if row.rank in table.blamed][:NAMED]
    states = Counter(_standing(row) for row in table.rows if not row.is_well)
    for state, number in sorted(states.items(), key=lambda pair: pair[1])[:3]:
        some = [row for row in table.rows if not row.is_well and _standing(row) == state]
        verb = _verb(state, number)
        if number == len(table.rows):
            found.append(f"all {verb}" if number > 1 else f"it {verb}")
        elif number > NAMED:
            found.append(f"{format_items(number, 'rank')} {verb}")
        elif rest := [row for row in some if row.rank not in table.blamed]:
            found.append(f"{', '.join(named(row) for row in rest)} {_verb(state, len(rest))}")
    return found


def _verb(state: str, number: int) -> str:
    """Return what so many ranks in a state are or did: "is hung", "were killed", "failed"."""
    if state == "failed":
        return state
    words = ("was", "were") if state in ENDED else ("is", "are")
    return f"{words[number > 1]} {state}"


def dimensions(rows: Iterable[RankRow]) -> list[str]:
    """Return what ranks can be grouped by: the node, and each known coordinate with more than one place."""
    places: dict[str, set[int]] = {}
    nodes = set()
    for row in rows:
        nodes.add(row.node)
        for name, place in row.place.coordinates.items():
            places.setdefault(name, set()).add(place)
    return [*([NODE] if len(nodes) > 1 else []), *(name for name, some in places.items() if len(some) > 1)]


def group_of(row: Mapping[str, Any], by: str) -> str:
    """Return the group of a row of `ranks_view`: its node, or its place on a coordinate."""
    if by == NODE:
        return short_node(str(row["node"])) or "unknown"
    place = row["coordinates"].get(by)
    return "unknown" if place is None else f"{by} {place}"


def groups(rows: Sequence[Mapping[str, Any]], by: str) -> list[dict[str, Any]]:
    """Return the groups of rows, which are ordered worst first: each with its worst rank, in the order of those."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(group_of(row, by), []).append(row)
    return [
        {
            "group": name,
            "ranks": [row["rank"] for row in own],
            "worst": own[0],
            "late": sum(row["is_late"] for row in own),
            "states": dict(Counter(row["stall"] or row["state"] for row in own)),
            "behind_steps": max((row["behind_steps"] or 0 for row in own), default=0),
        }
        for name, own in found.items()
    ]


def _row(row: RankRow, table: RankSheet, alone: Collection[int]) -> dict[str, Any]:
    place, late = row.place, is_late(row, table.usual_seconds)
    return {
        "rank": row.rank,
        "node": row.node,
        "host": short_node(row.node),
        "state": row.state,
        "stall": row.stall,
        "cause": row.cause,
        "is_well": row.is_well,
        "is_late": late,
        "blame": table.blamed.get(row.rank, ""),
        "is_notable": late or row.rank in alone,
        "step": row.step,
        "behind_steps": row.behind_steps,
        "behind_seconds": row.behind_seconds,
        "last_phase": row.last_phase,
        "slowest_phase": row.slowest_phase,
        "slowest_seconds": row.slowest_seconds,
        "step_seconds": row.step_seconds,
        "own_seconds": row.own_seconds,
        "late_seconds": row.late_seconds,
        "phases": dict(row.phases),
        "gpu": place.gpu,
        "gpu_name": place.gpu_name,
        "temperature": place.temperature,
        "throttled": list(place.throttled),
        "coordinates": dict(place.coordinates),
    }


def map_view(past: Past, what: str = LATE, steps: tuple[int, int] | None = None, buckets: int = 160) -> dict[str, Any]:
    """Return a quantity by rank and bucket of steps; null where nothing was recorded."""
    found = rank_map(past, what, steps, buckets)
    return {
        "what": what,
        "unit": found.unit,
        "is_difference": found.is_difference,
        "ranks": found.ranks.tolist(),
        "edges": found.edges.tolist(),
        "first_step": found.steps[0] if len(found.edges) else None,
        "last_step": found.steps[1] if len(found.edges) else None,
        "every_step": found.level == 1,
        "usual": rounded(found.usual),
        "values": [rounded(row) for row in found.values],
    }


def rounded(values: Floats) -> list[float | None]:
    """Return numbers with few digits; None where they are not finite."""
    finite = np.isfinite(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        power = np.floor(np.log10(np.abs(np.where(finite & (values != 0), values, 1.0))))
    scale = 10.0 ** (DIGITS - 1 - np.clip(power, -290, 290))
    short = np.round(np.where(finite, values, 0.0) * scale) / scale
    return [value if known else None for value, known in zip(short.tolist(), finite.tolist(), strict=True)]


def step_view(past: Past, steps: tuple[int, int], rank: int | None = None) -> dict[str, Any]:
    """Return one step, or the mean of several, of a rank, by default of the latest: beside the median of the others."""
    table = rank_table(past, steps, figures_only=True)
    known = [row for row in table.rows if row.step_seconds is not None]
    wanted = [row for row in known if row.rank == rank]
    shown = wanted[0] if wanted else None
    if rank is None and known:
        shown = max(known, key=lambda row: (row.late_seconds or 0.0, -row.rank))
    own, beyond = ({}, {}) if shown is None else (shown.phases, shown.beyond)
    return {
        "step": steps[0],
        "last_step": steps[1],
        "rank": rank if shown is None else shown.rank,
        "ranks": len(known),
        "node": "" if shown is None else shown.node,
        "host": "" if shown is None else short_node(shown.node),
        "step_seconds": None if shown is None else shown.step_seconds,
        "late_seconds": None if shown is None else shown.late_seconds,
        "usual_seconds": table.usual_seconds,
        "phases": [
            {
                "phase": name,
                "seconds": own.get(name),
                "usual_seconds": own[name] - beyond[name] if name in beyond else table.usual_phases.get(name),
                "may_wait": name in MEETING,
            }
            for name in sorted({*own, *table.usual_phases}, key=lambda name: (phase_place(name), name))
        ],
    }
