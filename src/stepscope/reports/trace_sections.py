"""Sections of the trace page: the tables and drawings of one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core.numbers import format_bytes
from stepscope.reports.markup import Markup, named, table, tag
from stepscope.reports.trace_drawings import bar, colour, duration, legend, memory, stack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROWS = 20
"""Maximum rows of a table."""
SHORT_ROWS = 10
"""Maximum rows of a table beside others."""


def findings(found: Sequence[Any]) -> Markup | None:
    """Return findings, the most severe first; each is a `Finding` or its facts."""
    facts = [one if isinstance(one, dict) else one.facts() for one in found]
    order = {"critical": 0, "warning": 1}
    facts.sort(key=lambda one: order.get(one["severity"], 2))
    return tag("ul", [_finding(one) for one in facts], class_="findings") if facts else None


def _finding(one: Mapping[str, Any]) -> Markup:
    gain = one.get("gain_ratio")
    parts = [one.get("remedy") or "", f"at most {100 * gain:.0f} % shorter" if gain else ""]
    remedy = "; ".join(filter(None, parts))
    more = [tag("br"), tag("span", remedy, class_="remedy")] if remedy else None
    return tag("li", one["text"], more, class_=one["severity"])


def overview(ranks: Sequence[Mapping[str, Any]]) -> Markup:
    """Return one line per rank: where its time went."""
    columns = ("idle", "compute", "communication", "exposed_communication", "memcpy", "dataloader")
    rows = []
    for rank in ranks:
        percents = {key: rank.get(f"{key}_percent") for key in columns}
        exposed, window = percents["exposed_communication"], rank.get("window")
        alone = percents["communication"] if exposed is None else exposed
        shares = {"compute": percents["compute"], "communication": alone, "copy": percents["memcpy"]}
        busy = stack([(kind, share or 0.0) for kind, share in shares.items()])
        length = duration(window["end_us"] - window["start_us"] if window else None)
        rows.append([label(rank), busy, *map(_percent, percents.values()), length])
    titles = ["", "busy", "idle", "compute", "communication", "exposed", "copies", "DataLoader", "window"]
    return tag("div", table(titles, rows, "  nnnnnnn"), legend(["compute", "communication", "copy"]))


def label(rank: Mapping[str, Any]) -> str:
    """Return the name of a rank: from its facts, its number, or its file."""
    if rank.get("label"):
        return str(rank["label"])
    return f"rank {rank['rank']}" if rank.get("rank") is not None else str(rank.get("file", "?")).rsplit("/", 1)[-1]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def kernels(facts: Mapping[str, Any]) -> Markup | None:
    """Return families of kernels, and the kernels."""
    if not facts.get("kernels"):
        return None
    families = [[row["family"], bar(row["percent"]), *_costs(row)] for row in facts.get("families", [])]
    single = [[named(row["name"]), row["family"], *_costs(row)] for row in facts["kernels"][:ROWS]]
    return tag(
        "div",
        tag("h3", "Kernels by family"),
        table(["family", "", "share", "total", "calls", "mean", "gain"], families, "  nnnnn"),
        tag("h3", "Kernels"),
        table(["kernel", "family", "share", "total", "calls", "mean", "gain"], single, "  nnnnn"),
        tag("p", "Share: of all device time. Gain: share of the window in which nothing else ran.", class_="soft"),
    )


def _costs(row: Mapping[str, Any]) -> list[str]:
    total, mean = duration(row["total_us"]), duration(row["mean_us"])
    return [_percent(row["percent"]), total, str(row["calls"]), mean, _percent(row.get("gain_percent"))]


def operators(facts: Mapping[str, Any]) -> Markup | None:
    """Return the operators."""
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


def path(facts: Mapping[str, Any]) -> Markup | None:
    """Return the critical path."""
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


def queue(facts: Mapping[str, Any]) -> Markup | None:
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


def memories(facts: Mapping[str, Any]) -> Markup | None:
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
