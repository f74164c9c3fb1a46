"""The page of one or many traces: one file that needs no network and no script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.analysis.trace.ranks import CAUSES
from stepscope.core.numbers import format_bytes
from stepscope.reports.markup import Markup, document, named, table, tag
from stepscope.reports.trace_drawings import bar, colour, course, duration, legend, memory, stack, waiting

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
ROWS = 20
"""Maximum rows of a table."""
SHORT_ROWS = 10
"""Maximum rows of a table beside others."""


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
        [tag("h2", "Where the time went"), tag("section", _overview(ranks))] if ranks else None,
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
    about = (facts.get("comparison"), facts.get("many_ranks"), ranks[0] if len(ranks) == 1 else None)
    listed = _findings([one for part in about if part for one in part.get("findings") or []])
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
    shown = [[tag("h3", _label(rank)), course(rank["timeline"], start, whole)] for rank, start in drawn]
    clock = "All ranks on one clock, aligned by their collectives." if aligned else "Each window from its own start."
    about = f"Height: share of the time in which it ran. {clock}"
    return [tag("h2", "Timeline"), tag("section", shown, tag("p", about, class_="soft"))]


def _rank(rank: Mapping[str, Any], *, opened: bool, alone: bool) -> Markup:
    """Return all sections of one rank; a single rank has its findings above."""
    sections = [
        None if alone else _findings(rank.get("findings") or []),
        _path(rank),
        _kernels(rank),
        _operators(rank),
        _queue(rank),
        _memories(rank),
    ]
    return tag("details", tag("summary", _label(rank)), sections, open="open" if opened else None)


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
    titles = ["collective", "count", "skew, median", "skew, largest", "of it waiting"]
    parts = [tag("h3", "Collectives"), table(titles, kinds, " nnnn")]
    if late:
        parts += [tag("h3", "Stragglers"), table(["rank", "late in all", "came last", "because of"], late, " nn")]
    if drawn:
        parts += [tag("h3", "Who (rows) waits for whom (columns)"), drawn]
    return [tag("h2", "Ranks among each other"), tag("section", parts, tag("p", about, class_="soft"))]


def _comparison(facts: Mapping[str, Any] | None) -> Any:
    """Return two traces side by side; the lines sum to the difference."""
    if not facts:
        return None
    shown, rest = (part for part in facts["parts"][:MOST_PARTS] if part["difference_us"]), facts["parts"][MOST_PARTS:]
    rows: list[list[Any]] = [[named(part["name"]), part["kind"], part["change"], *_differences(part)] for part in shown]
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
    sign, kind = ("+", "worse") if change > 0 else ("", "better")
    return [
        duration(part["before_us"]),
        duration(part["after_us"]),
        tag("span", f"{sign}{duration(change)}", class_=kind),
    ]


def _findings(found: Sequence[Any]) -> Markup | None:
    """Return findings, the most severe first; each is a `Finding` or its facts."""
    facts = [one if isinstance(one, dict) else one.facts() for one in found]
    order = {"critical": 0, "warning": 1}
    facts.sort(key=lambda one: order.get(one["severity"], 2))
    return tag("ul", [_finding(one) for one in facts], class_="findings") if facts else None


def _finding(one: Mapping[str, Any]) -> Markup:
    gain = one.get("gain_ratio")
    remedy = "; ".join(filter(None, [one.get("remedy"), f"at most {100 * gain:.0f} % shorter" if gain else ""]))
    more = [tag("br"), tag("span", remedy, class_="remedy")] if remedy else None
    return tag("li", one["text"], more, class_=one["severity"])


def _overview(ranks: Sequence[Mapping[str, Any]]) -> Markup:
    columns = ("idle", "compute", "communication", "exposed_communication", "memcpy", "dataloader")
    rows = []
    for rank in ranks:
        percents = {key: rank.get(f"{key}_percent") for key in columns}
        exposed, window = percents["exposed_communication"], rank.get("window")
        alone = percents["communication"] if exposed is None else exposed
        shares = {"compute": percents["compute"], "communication": alone, "copy": percents["memcpy"]}
        busy = stack([(kind, share or 0.0) for kind, share in shares.items()])
        length = duration(window["end_us"] - window["start_us"] if window else None)
        rows.append([_label(rank), busy, *map(_percent, percents.values()), length])
    titles = ["", "busy", "idle", "compute", "communication", "exposed", "copies", "DataLoader", "window"]
    return tag("div", table(titles, rows, "  nnnnnnn"), legend(["compute", "communication", "copy"]))


def _label(rank: Mapping[str, Any]) -> str:
    """Return the name of a rank: from its facts, its number, or its file."""
    if rank.get("label"):
        return str(rank["label"])
    return f"rank {rank['rank']}" if rank.get("rank") is not None else str(rank.get("file", "?")).rsplit("/", 1)[-1]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def _kernels(facts: Mapping[str, Any]) -> Markup | None:
    if not facts.get("kernels"):
        return None
    families = [[row["family"], bar(row["percent"]), *_costs(row)] for row in facts.get("families", [])]
    single = [[named(row["name"]), row["family"], *_costs(row)] for row in facts["kernels"][:ROWS]]
    costs = ["share", "total", "calls", "mean", "gain"]
    return tag(
        "div",
        [tag("h3", "Kernels by family"), table(["family", "", *costs], families, "  nnnnn")],
        [tag("h3", "Kernels"), table(["kernel", "family", *costs], single, "  nnnnn")],
        tag("p", "Share: of all device time. Gain: share of the window in which nothing else ran.", class_="soft"),
    )


def _costs(row: Mapping[str, Any]) -> list[str]:
    total, mean = duration(row["total_us"]), duration(row["mean_us"])
    return [_percent(row["percent"]), total, str(row["calls"]), mean, _percent(row.get("gain_percent"))]


def _operators(facts: Mapping[str, Any]) -> Markup | None:
    if not facts.get("operators"):
        return None
    rows = [
        [
            named(row["name"]),
            row["calls"],
            *(duration(row.get(key)) for key in ("self_us", "total_us", "device_us", "device_total_us")),
            _shapes(row.get("shapes")),
        ]
        for row in facts["operators"][:ROWS]
    ]
    titles = ["operator", "calls", "host self", "host total", "device self", "device total", "most time in shapes"]
    return tag("div", tag("h3", "Operators"), table(titles, rows, " nnnnn"))


def _shapes(shapes: Any) -> Markup | str:
    first = shapes[0] if isinstance(shapes, list) and shapes else None
    text = first.get("shapes", "") if isinstance(first, dict) else str(first or "")
    return named(text, 36) if text else ""


def _path(facts: Mapping[str, Any]) -> Markup | None:
    found = facts.get("critical_path")
    if not found:
        return None
    shares = [(entry["kind"], entry["percent"]) for entry in found["kinds"]]
    kinds = [
        [entry["kind"], bar(entry["percent"], entry["kind"]), _percent(entry["percent"]), duration(entry["total_us"])]
        for entry in found["kinds"]
    ]
    return tag(
        "div",
        tag("h3", f"Critical path of {found['of']}: {duration(found['length_us'])}"),
        stack(shares, width=960, height=14, wide=True),
        legend(list(dict.fromkeys(colour(kind) for kind, _ in shares))),
        table(["waiting for", "", "share", "total"], kinds, "  nn"),
        _parts("Longest parts", found["parts"]),
        _parts("On the host, by outermost operator", found["outer"]),
        tag("p", "Gain: how much shorter it would be without the part, by replay of everything else.", class_="soft"),
    )


def _parts(title: str, parts: Sequence[Mapping[str, Any]]) -> Markup | None:
    if not parts:
        return None
    rows = []
    for row in parts[:SHORT_ROWS]:
        name, total = named(row["name"] or row["kind"]), duration(row["total_us"])
        rows.append([name, _percent(row["percent"]), total, _percent(row["gain_percent"])])
    return tag("div", tag("h3", title), table(["part", "share", "total", "gain"], rows, " nnn"))


def _queue(facts: Mapping[str, Any]) -> Markup | None:
    """Return launch delays and queue lengths per stream, and CUDA graphs."""
    found, graphs = facts.get("queue"), facts.get("graphs")
    if not found:
        return None
    rows = [
        [
            f"{one['device']} / {one['stream']}",
            one["launches"],
            *(duration(one[f"delay_{key}_us"]) for key in ("median", "p90", "max")),
            f"{one['queue_mean']:.1f}",
            one["queue_max"],
            _percent(one["starved_percent"]),
        ]
        for one in found["streams"][:SHORT_ROWS]
    ]
    delays, queued = ("delay, median", "90 %", "longest"), ("queued, mean", "most", "found it empty")
    titles = ["device / stream", "launches", *delays, *queued]
    about = (
        f"{graphs['launches']} launches of CUDA graphs ran {graphs['kernels']} kernels "
        f"({graphs['kernels_percent']:.0f} % of all, {graphs['device_time_percent']:.0f} % of their time)."
        if graphs
        else "No CUDA graphs."
    )
    return tag("div", tag("h3", "Launches"), table(titles, rows, " nnnnnnn"), tag("p", about, class_="soft"))


def _memories(facts: Mapping[str, Any]) -> Markup | None:
    """Return memory over time and the owners of the peak, per device."""
    parts = []
    for entry in facts.get("memory") or []:
        if entry["device"] < 0:
            continue
        owners = []
        for one in entry["owners"][:SHORT_ROWS]:
            share = bar(100 * one["bytes"] / max(entry["peak_bytes"], 1))
            owners.append([named(one["name"]), format_bytes(one["bytes"]), share, one["allocations"]])
        reserved = entry["peak_reserved_bytes"]
        about = f"Memory of device {entry['device']}: {format_bytes(entry['peak_bytes'])} at its peak"
        parts += [
            tag("h3", about + (f", {format_bytes(reserved)} reserved" if reserved else "")),
            memory(entry),
            table(["owner at the peak", "bytes", "", "allocations"], owners, " n n") if owners else None,
        ]
    return tag("div", parts) if parts else None
