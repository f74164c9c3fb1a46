"""The metrics of a run: their list, and those to show first, which a person would look at and which move."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.compare.quantity import is_loss, is_score
from stepscope.core.vocabulary import by_canonical, canonical, metric_of, unit_of
from stepscope.sources.attempts import counts_of, nodes_of
from stepscope.store.machine import declared
from stepscope.views.overview import FIRST, OWN, PHASE, importance, machine_names
from stepscope.views.pace import SAMPLES, STEP
from stepscope.views.run_card import headline

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from stepscope.store.reader import Past
    from stepscope.views.buckets import Buckets

SOURCES = ("training", "phase", "machine", "own")
HELP = 400
"""Maximum characters of a metric's description."""
MOST = 8
"""Maximum metrics shown first."""
CANDIDATES = 32
"""Maximum metrics examined: a run may have thousands."""
RATES = ("samples_per_second", "tokens_per_second", "mfu_ratio")
MACHINE = ("gpu/mean_utilization_ratio", "cpu/usage_ratio", "memory/used_bytes")
TOPICS = {
    "gpu_memory": ("gpu/0/memory_used_bytes", "memory/peak_bytes"),
    "cpu_usage": ("cpu/usage_ratio",),
    "memory_usage": ("memory/used_bytes",),
    "training_speed": ("samples_per_second", "tokens_per_second", STEP),
    "gradient_norms": ("grad_norm",),
}
"""Topics in `web.metrics`: each stands for the first of these metrics that the run has."""
LINE = 0.05
"""Maximum deviation of a rising metric from a straight line, relative to its height, to count as a counter."""
_WORDS = re.compile(r"[/_.\-]+")
_HELD_OUT = frozenset(("val", "valid", "validation", "eval", "evaluation", "test", "dev", "holdout"))
_TRAINED = frozenset(("train", "training"))
_COUNTERS = frozenset(("epoch", "epochs", "step", "steps", "iteration", "iterations", "samples", "tokens"))


def metric_list(past: Past, wanted: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return every metric with unit, kind, help, group and source, the best known first; also ranks and attempts.

    `wanted` are metrics, in any documented spelling, that count as important before all others.
    """
    counts, nodes, machines = counts_of(past), nodes_of(past), past.machines()
    sampled = machine_names(past, counts)
    first = set(candidates(counts, sampled, wanted)[:MOST])
    rows: list[dict[str, Any]] = []
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
    rows.sort(key=lambda row: (SOURCES.index(row["source"]), importance(row["name"]), row["group"], row["name"]))
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


def first_look(wanted: Sequence[str], lines: Mapping[str, Buckets]) -> list[str]:
    """Return the metrics to show, in order: quality, other logged values, speed; `wanted` are the `candidates`.

    A metric that is constant, only counts, or has a single point in `lines` is left out; validation comes right after
    the training metric it judges.
    """
    return [name for name in wanted if name in lines and moves(name, lines[name])][:MOST]


def candidates(names: Collection[str], machine: Collection[str], first: tuple[str, ...] = ()) -> list[str]:
    """Return the metrics worth showing, best first, whatever their values are."""
    known = by_canonical(sorted(names))
    ordered = sorted(names, key=lambda name: (importance(name), name))
    own = [name for name in ordered if name not in machine and _is_own(name)]
    best = headline(own)
    losses = [name for name in own if is_loss(canonical(name)) or is_score(canonical(name))]
    quality = beside([*([best] if best else []), *(name for name in losses if name != best)])
    wanted = [
        *(_chosen(name, known) for name in first),
        *quality,
        *(name for name in own if name not in losses),
        *(known.get(name) for name in (STEP, *RATES)),
        *(name for name in MACHINE if name in names),
    ]
    chosen = list(dict.fromkeys(name for name in wanted if name))
    late = [name for name in chosen if name == STEP or name in machine]
    # a run of a thousand metrics still has a step time to fall back on
    return list(dict.fromkeys([*chosen[: CANDIDATES - len(late)], *late]))


def _chosen(wanted: str, known: Mapping[str, str]) -> str | None:
    """Return the recorded metric that a setting means: by name, spelling or topic."""
    meant = (canonical(wanted), *TOPICS.get(wanted, ()))
    return next((known[name] for name in meant if name in known), None)


def beside(names: Sequence[str]) -> list[str]:
    """Return names with each validation metric after the training metric that it judges."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_subject(name), []).append(name)
    return [
        name for group in groups.values() for name in sorted(group, key=lambda name: bool(_words(name) & _HELD_OUT))
    ]


def moves(name: str, series: Buckets) -> bool:
    """Return whether a chart of a metric would show anything: two points, not constant, not just a counter."""
    attempt = series.last_attempt()
    one = attempt.select(attempt.rank == attempt.rank.min()) if len(attempt.rank) else attempt
    low, high = one.lowest(), one.highest()
    if int(one.count.sum()) < 2 or len(np.unique(one.time)) < 2:
        return False
    if low is None or high is None:
        return bool(len(one.count))  # only NaN: that is worth showing
    bad = bool((one.finite < one.count).any())
    return bad or (high > low and not _counts(name, one))


def _counts(name: str, one: Buckets) -> bool:
    """Return whether a metric only shows progress: it never falls, and its name or shape is that of a counter."""
    value = one.last[np.isfinite(one.last)]
    if len(value) < 2 or (np.diff(value) < 0).any() or is_score(canonical(name)) or is_loss(canonical(name)):
        return False
    if not _COUNTERS.isdisjoint(_words(name)):
        return True
    scaled = value / max(np.abs(value).max(), np.finfo(float).tiny)
    height = scaled[-1] - scaled[0]
    if canonical(name) in FIRST or len(value) < 3 or not height > 0:
        return False
    line = np.linspace(0.0, 1.0, len(value))
    return bool(np.abs((scaled - scaled[0]) / height - line).max() <= LINE)


def _is_own(name: str) -> bool:
    return not name.startswith((PHASE, OWN)) and name not in {STEP, SAMPLES} and canonical(name) not in RATES


def _words(name: str) -> set[str]:
    return set(_WORDS.split(name.lower()))


def _subject(name: str) -> str:
    """Return the subject of a metric regardless of the data split: `loss` of `val_loss` and `train/loss`."""
    rest = [word for word in _WORDS.split(name.lower()) if word not in _HELD_OUT and word not in _TRAINED]
    return canonical("_".join(rest)) or name
