"""Rows lost, duplicated and altered over many kills, at 1, 10 and 1 000 rows per second."""

from __future__ import annotations

from collections import Counter

from bench.figure import Figure, Options
from bench.killing import cases, kill_all

AT_ONCE = 10


def measure(options: Options) -> list[Figure]:
    """Kill trainers, whole trees, watchers, and watchers while they seal."""
    found = kill_all(cases(options.kills, options.seed), options.scratch / "kills", AT_ONCE)
    victims = Counter(outcome.case.victim for outcome in found)
    states = Counter(outcome.state for outcome in found)
    total = sum(outcome.rows for outcome in found)
    what = f"rows {{}} over {len(found)} kills, {total} acknowledged"
    spread = ", ".join(f"{victim} {count}" for victim, count in victims.items())
    ends = ", ".join(f"{state} {count}" for state, count in states.items())
    failed = [outcome for outcome in found if outcome.failure]
    bad = "; ".join(f"{outcome.case}" for outcome in found if outcome.lost or outcome.duplicated or outcome.altered)
    return [
        Figure("lost", what.format("lost"), float(sum(outcome.lost for outcome in found)), "", 0.0, spread),
        Figure("duplicated", "  duplicated", float(sum(one.duplicated for one in found)), "", 0.0, f"states: {ends}"),
        Figure("altered", "  altered", float(sum(outcome.altered for outcome in found)), "", 0.0, bad),
        Figure(
            "not_killed",
            "  kills that could not be carried out",
            float(len(failed)),
            "",
            0.0,
            "; ".join({one.failure for one in failed}),
        ),
    ]
