"""Two to twenty runs side by side: configuration, summary numbers with their differences, and where the time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.analysis.compare.comparison import compare
from stepscope.analysis.compare.quantity import MEMORY, PHASE, RATE, TIME, kind_of
from stepscope.analysis.compare.recording import Group
from stepscope.sources.attempts import counts_of
from stepscope.sources.groups import flat, of_past
from stepscope.views.run_head import step_time
from stepscope.views.run_list import row
from stepscope.views.sums import sums_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.analysis.compare.comparison import Compared, Comparison
    from stepscope.store.reader import Past

SETTINGS = 500
"""Maximum configuration settings compared."""


def comparison_view(runs: Sequence[Past]) -> dict[str, Any]:
    """Return the comparison of some runs with the first of them."""
    groups = [Group(past.id, (of_past(past),)) for past in runs]
    found = [compare(groups[0], other) for other in groups[1:]]
    kept = ("key", "id", "name", "project", "state", "cause", "created", "step", "duration")
    return {
        "runs": [{key: listed[key] for key in kept} for listed in (row(past.path) for past in runs)],
        "config": settings([past.config for past in runs]),
        "numbers": numbers(found),
        "phases": [_phases(past) for past in runs],
        "notes": list(dict.fromkeys(note.text for one in found for note in one.findings))[:50],
    }


def settings(configs: Sequence[Any]) -> list[dict[str, Any]]:
    """Return every setting of the runs' configurations with its value in each; differing ones come first."""
    flattened = [dict(flat(config)) for config in configs]
    keys = list(dict.fromkeys(key for one in flattened for key in one))[:SETTINGS]
    rows = {key: [one.get(key) for one in flattened] for key in keys}
    same = {key: all(value == values[0] for value in values) for key, values in rows.items()}
    return [
        {"key": key, "values": rows[key], "same": same[key]} for key in sorted(keys, key=lambda key: (same[key], key))
    ]


def numbers(found: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return each quantity with its value in every run, and its difference from the first run."""
    names = sorted(dict.fromkeys(item.quantity for one in found for item in one.quantities), key=_place)
    rows = []
    for name in names:
        items = [one.quantity(name) for one in found]
        known = next(item for item in items if item is not None)
        lower = kind_of(name.partition("@")[0]).lower_is_better
        first = next((item.found.a for item in items if item is not None and item.found.a is not None), None)
        others = (None if item is None else item.found.b for item in items)
        rows.append(
            {
                "name": name,
                "unit": known.unit,
                "definition": known.definition,
                "better": None if lower is None else "lower" if lower else "higher",
                "values": [None if number is None else {"value": number} for number in (first, *others)],
                "differences": [None, *map(_difference, items)],
            }
        )
    return rows


def _place(quantity: str) -> int:
    """Return the sort position of a quantity: quality, speed, resources, then each phase."""
    metric = quantity.partition("@")[0]  # of loss@1000
    return 3 if metric.startswith(PHASE) else {TIME: 1, RATE: 1, MEMORY: 2}.get(kind_of(metric), 0)


def _difference(item: Compared | None) -> dict[str, Any] | None:
    if item is None:
        return None
    kept = ("ratio", "low", "high", "confidence", "verdict")
    return {**{key: getattr(item.found, key) for key in kept}, "text": item.found.why}


def _phases(past: Past) -> list[dict[str, Any]]:
    found = step_time(past, counts_of(past), sums_of(past))
    kept = ("phase", "seconds", "share", "mean")
    return [] if found is None else [{key: phase[key] for key in kept} for phase in found["phases"]]
