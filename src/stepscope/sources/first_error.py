"""Collect what the ranks of a run printed and how they ended, and find the first true error among them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.analysis.first_error.evidence import EndedRank, ErrorEvidence, Skew
from stepscope.analysis.first_error.judge import first_error
from stepscope.analysis.first_error.report import reports_of
from stepscope.core.events import ours
from stepscope.sources.attempts import is_foreign, nodes_of
from stepscope.sources.clocks import clock_offsets
from stepscope.store.console import ConsoleQuery, console_ranks
from stepscope.store.layout import RunFolder
from stepscope.store.states import newest_attempt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.analysis.first_error.evidence import FirstError
    from stepscope.core.console_line import ConsoleLine
    from stepscope.store.reader import Past
    from stepscope.store.states import NodeState

MOST_LINES = 60_000
"""Lines of all ranks that are searched."""
EACH_RANK, FEWEST = 400, 40
"""Newest lines of one rank that are searched, and how many if there are very many ranks."""
LOOKED_BACK = 900.0
"""Seconds before these lines in which an error is looked for, if they have none."""
USUAL_SPREAD = 1.0
"""Seconds by which the clocks of two nodes usually differ at most, where their offset was not estimated."""
ENDED = ("finished", "running")


def first_error_of(past: Past) -> FirstError | None:
    """Return the first true error of the last attempt of a run; None if no rank ended with one.

    Exceptions that the ranks reported, and their ends, are enough; consoles, where they were kept, tell more.
    """
    if is_foreign(past):
        return None
    nodes = nodes_of(past)
    attempt = newest_attempt(nodes)
    nodes = [node for node in nodes if node.attempt == attempt]
    ends = ends_of(nodes)
    errors = [
        event
        for event in ours(past.events())
        if event.get("kind") == "exception" and event.get("attempt", attempt) == attempt
    ]
    if not errors and all(end.state in ENDED for end in ends):
        return None
    size = past.meta.get("world_size")
    world = size if isinstance(size, int) and not isinstance(size, bool) and 0 < size <= 1_000_000 else None
    return first_error(ErrorEvidence(_lines(past, attempt), ends, errors, _clocks(past, nodes), world))


def ends_of(nodes: Sequence[NodeState]) -> list[EndedRank]:
    """Return how each rank of some nodes ended, or that it still runs."""
    return [
        EndedRank(
            *(number, node.node, rank.state, rank.cause),
            None if rank.ended is None else rank.ended / 1e6,
            rank.inferred,
            rank.step,
        )
        for node in nodes
        for number, rank in node.ranks.items()
    ]


def _lines(past: Past, attempt: int) -> Mapping[int, Sequence[ConsoleLine]]:
    """Return the newest lines of each rank: the one that failed first printed long before the others gave up."""
    ranks = len(console_ranks(RunFolder(past.path)))
    each = max(FEWEST, min(EACH_RANK, MOST_LINES // max(1, ranks)))
    query = ConsoleQuery(attempt=attempt, last=MOST_LINES, last_each=each, limit=MOST_LINES)
    found: dict[int, list[ConsoleLine]] = {}
    for line in past.console(query).lines:
        found.setdefault(line.rank, []).append(line)
    cut = [rank for rank, lines in found.items() if len(lines) >= each and not reports_of(lines)]
    if cut:  # what they print at their end, such as native stacks, is longer than that
        since = min(found[rank][0].time for rank in cut) - LOOKED_BACK
        errors = replace(query, ranks=cut, since=since, level="error", last_each=FEWEST)
        for line in past.console(errors).lines:
            found[line.rank].append(line)
    return {rank: _in_order(lines) for rank, lines in found.items()}


def _in_order(lines: Sequence[ConsoleLine]) -> list[ConsoleLine]:
    """Return the lines of a rank in their order, each once."""
    return list({(line.node, line.number): line for line in sorted(lines, key=lambda line: line.number)}.values())


def _clocks(past: Past, nodes: Sequence[NodeState]) -> dict[str, Skew]:
    """Return the clocks of the nodes; an offset that could not be estimated counts as the usual one."""
    names = {node.node for node in nodes}
    if len(names) < 2:
        return {}
    usual = dict.fromkeys(names, Skew(0.0, USUAL_SPREAD))
    found = clock_offsets(past)
    known = {name: Skew(one.seconds, one.spread_seconds) for name, one in found.items() if one.source != "unknown"}
    return usual | known
