"""Print a diagnosis as text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from stepscope.core.numbers import format_count, format_duration, format_money, format_share, format_value
from stepscope.core.terminal_text import cut, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.cli.text.terminal import Paint

MARKS = {"critical": ("!!", "red"), "warning": ("!", "yellow"), "info": ("-", "dim")}
LABEL = 10
MOST_CHANGES = 3


def lines(facts: dict[str, Any], width: int, paint: Paint, *, everything: bool = False) -> Iterator[str]:
    """Yield the findings, the primary one first."""
    about, found = facts["run"], facts["findings"]
    label = about["name"] if about["name"] == about["id"] else f"{about['name']} ({about['id']})"
    yield paint(cut(plain(label), width - 14), "bold") + (f"  {about['state']}" if about["state"] else "")
    style = MARKS[found[0]["severity"]][1] if found else "green"
    yield from _fact("verdict", paint(facts["primary"], style), width, paint)
    if facts["steps"]:
        mean = format_value(facts["seconds"] / facts["steps"], "seconds")
        text = f"{format_count(facts['steps'])} in {format_duration(facts['seconds'])}, {mean} each"
        yield from _fact("steps", text, width, paint)
    for note in facts["notes"]:
        yield from _fact("note", note, width, paint)
    if not found:
        yield from _fact("", facts["summary"], width, paint)
    for one in found:
        yield ""
        yield from _finding(one, width, paint)
    yield from _changes(facts, width, paint, everything=everything)
    yield from _missing(facts["missing"], width, paint, everything=everything)


def _fact(label: str, text: str, width: int, paint: Paint) -> Iterator[str]:
    first, *rest = textwrap.wrap(plain(text) if "\x1b" not in text else text, width - LABEL - 2) or [""]
    yield f"  {paint(label.ljust(LABEL), 'dim')}{first}"
    yield from (f"  {' ' * LABEL}{line}" for line in rest)


def _finding(one: dict[str, Any], width: int, paint: Paint) -> Iterator[str]:
    mark, style = MARKS.get(one["severity"], ("-", "dim"))
    sure = "" if one["confidence"] is None else f"{format_share(one['confidence'])} sure"
    rank = "" if one["rank"] is None else f"rank {one['rank']}"
    cost = "" if one["cost_seconds"] is None else f"cost {format_duration(one['cost_seconds'])}"
    money = one.get("cost_money")
    spent = "" if money is None else f"{format_money(money['amount'])} {money['currency']}"
    about = ", ".join(part for part in (cost, spent, rank, sure) if part)
    yield f"{paint(mark.rjust(2), style)} {paint(one['kind'], style)}  {paint(about, 'dim')}"
    yield from _fact("what", one["text"], width, paint)
    for label, key in (("gain", "expected_gain"), ("do", "remedy")):
        if one[key]:
            yield from _fact(label, one[key], width, paint)


def _changes(facts: dict[str, Any], width: int, paint: Paint, *, everything: bool) -> Iterator[str]:
    told = [*facts["changes"], *facts["slow_steps"]]
    if not told:
        return
    yield ""
    most = len(told) if everything else MOST_CHANGES
    rest = f"  {len(told) - most} more with --all" if len(told) > most else ""
    yield paint("What changed", "bold") + paint(rest, "dim")
    for one in [*facts["changes"][:most], *facts["slow_steps"][: max(1, most - len(facts["changes"]))]]:
        yield from textwrap.wrap(plain(one["text"]), width, initial_indent="  - ", subsequent_indent="    ")


def _missing(missing: list[dict[str, str]], width: int, paint: Paint, *, everything: bool) -> Iterator[str]:
    if not missing:
        return
    yield ""
    if not everything:
        names = ", ".join(one["signal"] for one in missing)
        yield paint(cut(f"Not recorded: {names} (--all shows what each would add)", width), "dim")
        return
    yield paint("Not recorded", "bold")
    for one in missing:
        text = f"{one['signal']}: {one['why']}; {one['remedy']}"
        yield from textwrap.wrap(plain(text), width, initial_indent="  - ", subsequent_indent="    ")
