"""The first screen of a run: identity, state, where its time goes, recent changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core.numbers import format_value
from stepscope.sources.attempts import counts_of, nodes_of
from stepscope.store.layout import RunFolder
from stepscope.views import overview
from stepscope.views.event_list import QUIET, TEXTS, EventCount, line_of
from stepscope.views.metric_list import candidates, first_look
from stepscope.views.pace import STEP
from stepscope.views.run_card import POINTS, drawn, status
from stepscope.views.run_card import card as card_of
from stepscope.views.run_list import row
from stepscope.views.sinks import sink_rows
from stepscope.views.sums import lines_of, sums_of

if TYPE_CHECKING:
    from stepscope.store.reader import Past
    from stepscope.views.sums import Sums

EXACT = 300_000
"""Maximum rows of steps and phases for percentiles; beyond it, sums and means of all rows."""
CHANGES = 12
"""Maximum recent changes."""
RANKS = 2000
"""Maximum ranks listed."""


def run_head(past: Past, first: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the head of a run as plain data; `first` are metrics to show before others."""
    folder, counts = RunFolder(past.path), counts_of(past)
    names = list(counts)
    sums, wanted = sums_of(past), candidates(names, overview.machine_names(past, counts), first)
    lines = lines_of(past, sums, {*wanted, *drawn(names)}, POINTS)
    card = card_of(past, names, sums, lines)
    now = status(folder, {**card, "names": len(names)}, EventCount(folder))
    ranks = overview.attempts(nodes_of(past))
    ended = now["state"] not in {"running", "finished"}
    return {
        "run": {"key": row(past.path)["key"], **overview.identity(past)},
        "status": now,
        "card": card,
        "ranks": ranks[:RANKS],
        "numbers": key_numbers(now, card),
        "time": step_time(past, counts, sums),
        "throughput": overview.throughput(past, counts, sums),
        "important": first_look(wanted, lines),
        "changes": changes(past),
        "sinks": sink_rows(folder),
        "end": overview.end(past, ranks, now["step"]) if ended else None,
        "points": sum(counts.values()),
        "problems": [*past.known_problems][:50],
        "definitions": overview.DEFINITIONS,
    }


def key_numbers(now: dict[str, Any], card: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the numbers at the top, with the text of each; unknown ones are left out."""
    loss = card["loss"] or {}
    wanted = (
        ("step", "step", now["step"], ""),
        ("loss", loss.get("name", "loss"), loss.get("last"), ""),
        ("best", f"best {loss.get('name', 'loss')}", loss.get("best"), ""),
        ("rate", "steps per second", card["rate"], ""),
        ("samples_per_second", "samples per second", card["samples_per_second"], ""),
        ("step_seconds", "mean step", card["step_seconds"], "seconds"),
        ("gpu", "GPU use", card["gpu"], "ratio"),
        ("epoch", "epoch", card["epoch"], ""),
        ("duration", "duration", now["duration"], "seconds"),
        ("left", "time left", now["left"], "seconds"),
    )
    shown = [
        {"key": key, "label": label, "value": value, "unit": unit, "text": format_value(float(value), unit)}
        for key, label, value, unit in wanted
        if value is not None
    ]
    if loss and loss["last"] is None:  # the last value is not finite: still show the last finite one
        shown.insert(1, {"key": "loss", "label": loss["name"], "value": None, "unit": "", "text": "NaN"})
    return shown


def step_time(past: Past, counts: dict[str, int], sums: Sums) -> dict[str, Any] | None:
    """Return the phases of a step: as in `show` while that is cheap, else from exact sums of buckets."""
    if STEP not in counts:
        return None
    phases = [name for name in counts if name.startswith(overview.PHASE)]
    if sum(counts[name] for name in (STEP, *phases)) <= EXACT:
        return overview.step_time(past, counts, None)
    return overview.summed({name: sums[name] for name in (STEP, *phases) if name in sums})


def changes(past: Past) -> list[dict[str, Any]]:
    """Return recent changes, the newest first.

    Of the events with texts only the newest is listed: one text per step would hide all other events.
    """
    events = past.events()
    last_text = next((one for one in reversed(events) if one.get("kind") == TEXTS), None)
    listed = [one for one in events if one.get("kind") not in QUIET or one is last_text]
    return [
        {
            "time": one.get("time"),
            "step": one.get("step"),
            "kind": str(one.get("kind", "other"))[:100],
            "text": line_of(one) or str(one.get("kind", "")),
        }
        for one in reversed(listed[-CHANGES:])
    ]
