"""Are runs comparable? A difference means little across machines or batches, or in a group that mixes two programs.

The facts of a run are named `<what>/<which>`: hardware, batch, build and config. Within a group all of them should be
equal; between groups builds and settings may differ (that is what one compares), machines and batches should not.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.finding import INFO, WARNING, Finding
from stepscope.core.numbers import format_change

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.analysis.compare.recording import Group
    from stepscope.core.arrays import Floats


HARDWARE, BATCH, BUILD, CONFIG = "hardware", "batch", "build", "config"
WORDS = {HARDWARE: "hardware", BATCH: "batches", BUILD: "builds", CONFIG: "settings"}
APART = 1.8
"""Two clusters of runs are two programs if their distance is this many times that within each. Of 174 subsets of six
groups of equal runs on 8 H100 (modded-nanogpt-runs) none reaches 1.6; mixtures of two programs that differ by 0.5 and
1.1 % reach 3.7 and more, by 0.2 % 1.6 to 3.6. On two busy cores 1 in 20 groups of equal torch loops reaches it: a busy
hour is like another machine."""
ALONE = 3.0
"""The same for one run against all others; at most 2.3 in those 174 subsets."""
LEAST_APART = 0.003
"""Minimum relative difference to report: equal programs differ by 0.2 % from day to day, and nobody can change that."""
FEWEST_RUNS = 4
"""Minimum runs of a group to search for clusters."""
MOST_SHOWN = 4
_VARIES = re.compile(
    r"seed|name|dir|path|file|port|host|id$|date|time|output|log|seconds$|status$|train_samples$", re.IGNORECASE
)
"""Settings, and results among them, that naturally differ between repeats."""


@dataclass(frozen=True)
class Mixture:
    """Runs of one group that differ from the others."""

    few: tuple[int, ...]
    """Indices of the runs in the smaller cluster."""
    ratio: float
    """Its relative difference from the others."""
    distance: float
    """Distance between the clusters, divided by the larger distance within one."""


def unlikeness(groups: Sequence[Group]) -> list[Finding]:
    """Return what differs within the groups, and between them."""
    return [*(finding for group in groups for finding in _inside(group)), *_between(groups)]


def _inside(group: Group) -> Iterator[Finding]:
    for what, word in WORDS.items():
        values = {name: _values(group, name) for name in _names([group], what)}
        mixed = {name: found for name, found in values.items() if len(found) > 1}
        if mixed:
            text = f"{group.label} mixes {word}: {_joined({name: _counted(found) for name, found in mixed.items()})}"
            remedy = "compare runs of one kind: leave the others out of the group"
            yield Finding("mixed_group", text, WARNING, remedy, {"group": group.label, "mixed": mixed})


def _between(groups: Sequence[Group]) -> Iterator[Finding]:
    first = groups[0]
    for other in groups[1:]:
        for what, word in WORDS.items():
            values = {name: (_values(first, name), _values(other, name)) for name in _names([first, other], what)}
            found = {name: [list(a), list(b)] for name, (a, b) in values.items() if a and b and set(a) != set(b)}
            if found:
                parts = {name: f"{' | '.join(a[:2])} -> {' | '.join(b[:2])}" for name, (a, b) in found.items()}
                text = f"{word} of {first.label} and {other.label} differ: {_joined(parts)}"
                evidence = {"groups": [first.label, other.label], "differ": found}
                if what in {HARDWARE, BATCH}:
                    remedy = "run both on the same machines with the same batch"
                    yield Finding("unlike_groups", text, WARNING, remedy, evidence)
                else:
                    yield Finding("changed", text, INFO, evidence=evidence)


def _names(groups: Sequence[Group], what: str) -> list[str]:
    names = {name for group in groups for run in group.runs for name in run.facts if name.startswith(f"{what}/")}
    return sorted(name for name in names if what != CONFIG or not _VARIES.search(name))


def _values(group: Group, name: str) -> dict[str, int]:
    """Return the values of a fact in a group, each with its number of runs; unknown values are left out."""
    found = Counter(_shown(run.facts[name]) for run in group.runs if run.facts.get(name) is not None)
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _counted(values: dict[str, int]) -> str:
    return ", ".join(f"{value} ({runs})" for value, runs in list(values.items())[:MOST_SHOWN])


def _joined(parts: dict[str, str]) -> str:
    shown = [f"{name.partition('/')[2]} {text}" for name, text in parts.items()][:MOST_SHOWN]
    more = f"; and {len(parts) - MOST_SHOWN} more" if len(parts) > MOST_SHOWN else ""
    return "; ".join(shown) + more


def mixture(profiles: Floats | None) -> Mixture | None:
    """Return the runs of a group that differ, if it falls into two clusters; None if it does not.

    Runs of one program are slow and fast in the same places. So the distance of two runs is the median over the spans
    of their difference (`level.profiles`), which a disturbance in some spans does not change. Runs far from all others
    are set aside one by one, so that they do not hide two programs behind them.
    """
    if profiles is None:
        return None
    left = np.arange(len(profiles))
    alone: Mixture | None = None
    while len(left) >= FEWEST_RUNS:
        distances = np.median(np.abs(profiles[left][:, None] - profiles[left][None]), axis=2)
        few, many = _two_clusters(distances)
        between = float(distances[np.ix_(few, many)].mean())
        inside = max(_inner(distances, few), _inner(distances, many))
        reach = between / inside if inside > 0 else np.inf if between > 0 else 0.0
        ratio = float(np.median(profiles[left[few]].mean(axis=0) - profiles[left[many]].mean(axis=0)))
        found = Mixture(tuple(left[few].tolist()), ratio, float(reach))
        if len(few) > 1:
            return found if reach >= APART and abs(ratio) >= LEAST_APART else alone
        if reach >= ALONE and abs(ratio) >= LEAST_APART:
            alone = alone or found
        left = left[many]
    return alone


def _inner(distances: Floats, members: list[int]) -> float:
    """Return the mean distance between the members of a cluster; 0 for a single one."""
    count = len(members)
    return float(distances[np.ix_(members, members)].sum()) / (count * (count - 1)) if count > 1 else 0.0


def _two_clusters(distances: Floats) -> tuple[list[int], list[int]]:
    """Join the nearest clusters, by their mean distance, until two are left; the smaller first, members in order."""
    members = [[place] for place in range(len(distances))]
    apart = distances.astype(np.float64)
    np.fill_diagonal(apart, np.inf)
    while len(members) > 2:
        first, second = sorted(divmod(int(np.argmin(apart)), len(members)))
        sizes = len(members[first]), len(members[second])
        joined = (sizes[0] * apart[first] + sizes[1] * apart[second]) / sum(sizes)
        apart[first], apart[:, first] = joined, joined
        apart[first, first] = np.inf
        apart = np.delete(np.delete(apart, second, 0), second, 1)
        members[first] += members.pop(second)
    few, many = sorted((sorted(some) for some in members), key=len)
    return few, many


def apart(group: Group, found: Mixture, quantity: str) -> Finding:
    """Return the finding that a group seems to mix two programs, or has a run that stands apart."""
    names = ", ".join(group.runs[place].label for place in found.few[:MOST_SHOWN])
    count = len(found.few)
    seems = "one run stands apart" if count == 1 else f"it seems to mix two programs or machines: {count} runs"
    others = len(group.runs) - count
    text = f"{group.label}: {seems} ({names}), {format_change(found.ratio)} in {quantity} from the other {others}"
    evidence = {"group": group.label, "runs": list(found.few), "ratio": found.ratio, "distance": found.distance}
    kind = "outlier_run" if count == 1 else "mixed_group"
    return Finding(kind, text, WARNING, "look at what these runs did otherwise, or leave them out", evidence)
