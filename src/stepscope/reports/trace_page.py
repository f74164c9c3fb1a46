"""The page of one or many traces: one file that needs no network and no script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.analysis.trace.ranks import CAUSES
from stepscope.reports import trace_sections
from stepscope.reports.markup import Markup, document, named, table, tag
from stepscope.reports.trace_drawings import course, duration, waiting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_RANKS = 16
"""Maximum ranks with their own sections; the overview lists all."""
MOST_SQUARES = 64
"""Maximum ranks for which the waiting matrix is drawn."""
SIDES = ("before", "after")
"""Names of the two traces of a comparison."""
MOST_PARTS = 40
"""Maximum parts of a comparison listed; the rest is one line, so that the sum is complete."""


def page(facts: Mapping[str, Any]) -> str:
    """Return the page of what `stepscope trace --json` prints; `title` may be added."""
    ranks = facts.get("ranks") or []
    if facts.get("comparison") and len(ranks) == len(SIDES):
        ranks = [{**rank, "label": side} for rank, side in zip(ranks, SIDES, strict=True)]
    sides = any("label" in rank for rank in ranks)
    usual = "Two traces" if sides else f"Trace of {len(ranks)} ranks" if len(ranks) > 1 else "Trace"
    title = str(facts.get("title") or usual)
    body = [
        tag("h1", title),
        tag("p", _about(ranks), class_="soft"),
        _found(facts, ranks),
        _comparison(facts.get("comparison")),
        [tag("h2", "Where the time went"), tag("section", trace_sections.overview(ranks))] if ranks else None,
        _many(facts.get("many_ranks")),
        _courses(ranks, facts.get("many_ranks")),
        [_rank(rank, opened=place == 0, alone=len(ranks) == 1) for place, rank in enumerate(ranks[:MOST_RANKS])],
    ]
    return document(title, body, "trace_page.css")


def _about(ranks: Sequence[Mapping[str, Any]]) -> str:
    listed = [str(rank.get("file", "")).rsplit("/", 1)[-1] for rank in ranks[:3]]
    kinds = sorted({str(rank["window"]["kind"]).replace("_", " ") for rank in ranks if rank.get("window")})
    more = f" and {len(ranks) - 3} more" if len(ranks) > 3 else ""
    return f"{', '.join(listed)}{more}. Window: {', '.join(kinds) or 'none'}."


def _found(facts: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> Any:
    """Return the findings about everything: the comparison, the ranks relative to each other, and a single rank."""
    found = [
        *((facts.get("comparison") or {}).get("findings") or []),
        *((facts.get("many_ranks") or {}).get("findings") or []),
        *(ranks[0].get("findings") or [] if len(ranks) == 1 else []),
    ]
    listed = trace_sections.findings(found)
    return [tag("h2", "Findings"), tag("section", listed)] if listed else None


def _courses(ranks: Sequence[Mapping[str, Any]], many: Mapping[str, Any] | None) -> Any:
    """Return the timelines of the ranks, on one clock if their collectives have aligned them."""
    begun = (many or {}).get("window_start_us") or []
    aligned = len(begun) == len(ranks) and all(start is not None for start in begun)
    starts = begun if aligned else [0.0] * len(ranks)
    drawn = [
        (rank, start)
        for rank, start in zip(ranks[:MOST_RANKS], starts, strict=False)
        if (rank.get("timeline") or {}).get("shares")
    ]
    if not drawn:
        return None
    whole = max(start + rank["timeline"]["length_us"] for rank, start in drawn) if aligned else None
    shown = [[tag("h3", trace_sections.label(rank)), course(rank["timeline"], start, whole)] for rank, start in drawn]
    clock = "All ranks on one clock, aligned by their collectives." if aligned else "Each window from its own start."
    about = f"Height: share of the time in which it ran. {clock}"
    return [tag("h2", "Timeline"), tag("section", shown, tag("p", about, class_="soft"))]


def _rank(rank: Mapping[str, Any], *, opened: bool, alone: bool) -> Markup:
    """Return all sections of one rank; a single rank has its findings above."""
    sections = [
        None if alone else trace_sections.findings(rank.get("findings") or []),
        trace_sections.path(rank),
        trace_sections.kernels(rank),
        trace_sections.operators(rank),
        trace_sections.queue(rank),
        trace_sections.memories(rank),
    ]
    return tag("details", tag("summary", trace_sections.label(rank)), sections, open="open" if opened else None)


def _many(facts: Mapping[str, Any] | None) -> Any:
    """Return the ranks relative to each other: collectives, who waits for whom, stragglers."""
    if not facts or not facts.get("matched"):
        return None
    kinds, late = [], []
    for row in facts["kinds"]:
        skew = (duration(row["skew_median_us"]), duration(row["skew_max_us"]))
        kinds.append([named(row["collective"]), row["count"], *skew, f"{row['waiting_percent']:.0f} %"])
    for row in facts["stragglers"]:
        cause = CAUSES[row["cause"]][0] if row["cause"] else "not known"
        late.append([row["rank"], duration(row["late_us"]), f"{row['last']} of {row['matched']}", cause])
    drawn = waiting(facts["waits_us"], facts["ranks"]) if len(facts["ranks"]) <= MOST_SQUARES else None
    spread = duration(facts["alignment_spread_us"])
    about = f"Clocks aligned by {facts['matched']} collectives; ends then agree within {spread}."
    return [
        tag("h2", "Ranks among each other"),
        tag(
            "section",
            tag("h3", "Collectives"),
            table(["collective", "count", "skew, median", "skew, largest", "of it waiting"], kinds, " nnnn"),
            [tag("h3", "Stragglers"), table(["rank", "late in all", "came last", "because of"], late, " nn")]
            if late
            else None,
            [tag("h3", "Who (rows) waits for whom (columns)"), drawn] if drawn else None,
            tag("p", about, class_="soft"),
        ),
    ]


def _comparison(facts: Mapping[str, Any] | None) -> Any:
    """Return two traces side by side; the lines sum to the difference."""
    if not facts:
        return None
    shown, rest = facts["parts"][:MOST_PARTS], facts["parts"][MOST_PARTS:]
    rows: list[list[Any]] = [
        [named(part["name"]), part["kind"], part["change"], *_differences(part)]
        for part in shown
        if part["difference_us"]
    ]
    if rest:
        sums = {key: sum(part[key] for part in rest) for key in ("before_us", "after_us", "difference_us")}
        rows.append([f"{len(rest)} more", "", "", *_differences(sums)])
    rows.append([tag("strong", f"a {facts['per']}"), "", "", *_differences(facts)])
    titles = ["part", "kind", "", "before", "after", "difference"]
    about = "Parts are device time, shared evenly where several run, and idle time by what the launching thread did."
    return [
        tag("h2", "Before and after"),
        tag("section", table(titles, rows, "   nnn"), tag("p", about, class_="soft")),
    ]


def _differences(part: Mapping[str, Any]) -> list[Any]:
    change = part["difference_us"]
    sign = "+" if change > 0 else ""
    return [
        duration(part["before_us"]),
        duration(part["after_us"]),
        tag("span", f"{sign}{duration(change)}", class_="worse" if change > 0 else "better"),
    ]
