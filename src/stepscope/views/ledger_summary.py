"""The time ledger of a run as titles, rows and one sentence, for a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core.numbers import format_money, format_value

if TYPE_CHECKING:
    from collections.abc import Mapping

TITLE = "Where the Time Went"
KEPT = ("wall_seconds", "paid_seconds", "goodput_ratio", "steps", "seconds", "imported", "money", "wasted")
"""Keys of a ledger that a report keeps."""


def kept(ledger: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a ledger that a report shows, with its table and its summary as texts."""
    told = {"title": TITLE, "titles": _titles(ledger), "rows": _rows(ledger), "summary": _summary(ledger)}
    return {**{key: ledger[key] for key in KEPT}, **told}


def _summary(ledger: Mapping[str, Any]) -> str:
    """Return the ledger in one sentence."""
    good, whole = ledger["goodput_ratio"], format_value(ledger["wall_seconds"], "seconds")
    source = ledger["imported"]
    share = format_value(good, "ratio")
    told = f"Of {whole} no step is known" if good is None else f"Of {whole} {share} were productive"
    if source is not None and not source["timed"]:
        told += "; the times are added up, as the log tells none of the clock"
    return f"{told}."


def _titles(ledger: Mapping[str, Any]) -> list[str]:
    """Return the titles of the columns."""
    return ["class", "time", "share", *([ledger["money"]["currency"]] if ledger["money"] else [])]


def _rows(ledger: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each class that has any time."""
    money, whole = ledger["money"], ledger["wall_seconds"]
    return [
        [
            name,
            format_value(seconds, "seconds"),
            format_value(seconds / whole, "ratio"),
            *([format_money(money["classes"][name])] if money else []),
        ]
        for name, seconds in ledger["seconds"].items()
        if seconds > 0
    ]
