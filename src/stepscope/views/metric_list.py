"""The metrics of a run as a list: description, group, and which come first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core.vocabulary import canonical, metric_of, unit_of
from stepscope.store.layout import RunFolder
from stepscope.store.machine import declared
from stepscope.store.snapshot import take_snapshot
from stepscope.store.states import read_nodes
from stepscope.views.first_look import MOST, candidates
from stepscope.views.machine_facts import machine_names
from stepscope.views.overview import FIRST, OWN, PHASE

if TYPE_CHECKING:
    from stepscope.store.reader import Past

SOURCES = ("training", "phase", "machine", "own")
HELP = 400
"""Maximum characters of a metric's description."""


def metric_list(past: Past, wanted: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return every metric with unit, kind, help, group and source, the best known first; also ranks and attempts.

    Args:
        past: the run.
        wanted: metrics, in any documented spelling, to rank before others.
    """
    counts = take_snapshot(RunFolder(past.path)).counts()
    machines, sampled = past.machines(), machine_names(past, counts)
    nodes, _ = read_nodes(RunFolder(past.path))
    first = set(candidates(counts, sampled, wanted)[:MOST])
    rows = []
    for name, count in counts.items():
        source = _source(name, sampled)
        known = declared(machines, name) if source == "machine" else metric_of(name)
        rows.append(
            {
                "name": name,
                "unit": known.unit if known else unit_of(name),
                "kind": known.kind if known else "gauge",
                "help": known.help[:HELP] if known else "",
                "group": name.partition("/")[0] if "/" in name else "",
                "source": source,
                "count": count,
                "important": name in first,
            }
        )
    rows.sort(key=_place)
    return {
        "ranks": sorted({number for node in nodes for number in node.ranks}),
        "attempts": sorted({node.attempt for node in nodes}),
        "metrics": rows,
    }


def _source(name: str, sampled: set[str]) -> str:
    if name.startswith(OWN):
        return "own"
    if name.startswith(PHASE):
        return "phase"
    return "machine" if name in sampled else "training"


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    known = canonical(row["name"])
    importance = FIRST.index(known) if known in FIRST else len(FIRST)
    return SOURCES.index(row["source"]), importance, row["group"], row["name"]
