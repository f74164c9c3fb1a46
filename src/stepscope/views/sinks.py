"""The sinks of a run for page, terminal, `show` and report: one row per sink, over all nodes, and the words for it."""

from __future__ import annotations

import time
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stepscope.core.numbers import format_duration, format_items
from stepscope.store.sinks import DENIED, DONE, SENDING, is_left, read_sinks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.store.layout import RunFolder
    from stepscope.store.sinks import SinkState

KEEPS_UP, CATCHES_UP, SILENT, REFUSED, COMPLETE = "keeping up", "catching up", "not answering", "denied", "done"
STOPPED = "stopped"
LEFT = "nothing is sent any more; `stepscope export RUN --to URL` sends what is missing"
"""The reason of a sink whose sender was killed, or whose `stepscope tee` was ended."""
TONES = {REFUSED: "bad", STOPPED: "warn", SILENT: "warn", CATCHES_UP: "go", KEEPS_UP: "good", COMPLETE: "good"}
"""The words for the state of a sink, the worst first, and how each is shown: bad, warn, go (busy) or good."""
LATE = 30.0
"""Seconds behind from which on a sink that takes rows is catching up; longer if its batches are further apart."""
MOST_SINKS = 100
MOST_TEXT = 500
"""Characters of a name, an address or a reason."""
MOST_LINK = 2000
MOST_COUNT = 2**53
"""The largest number that the page reads exactly."""


def sink_rows(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the sinks of a run, by name: plain data, whatever the files hold; empty without sinks."""
    try:
        states = read_sinks(folder)
    except OSError:  # a folder that this user cannot read, like one that is not there, has no sinks to show
        return []
    now = time.time()
    for state in states:
        if is_left(folder, state, now):
            state.state, state.why = STOPPED, LEFT
    rows = [_merged(list(own)) for _, own in groupby(states, lambda one: one.key)]
    return sorted(rows, key=lambda row: (row["name"], row["key"]))[:MOST_SINKS]


def state_word(state: SinkState) -> str:
    """Return the state of one node's part of a sink in words."""
    if state.state == STOPPED:
        return STOPPED
    if state.state in {DENIED, DONE}:
        return REFUSED if state.state == DENIED else COMPLETE
    if state.state != SENDING and state.why:
        return SILENT
    is_late = state.behind_seconds >= max(LATE, 2 * state.interval)
    return KEEPS_UP if state.state == SENDING and not is_late else CATCHES_UP


def behind_text(row: Mapping[str, Any]) -> str:
    """Return how far a sink is behind: "1 234 rows, 5 min 3 s"; nobody counts for one that is stopped."""
    rows, seconds = row["behind_rows"], row["behind_seconds"]
    if row["state"] == STOPPED and not rows:
        return "unknown"
    return f"{format_items(rows, 'row')}, {format_duration(seconds)}" if rows else "nothing"


def _merged(nodes: list[SinkState]) -> dict[str, Any]:
    """Return one sink over its nodes: sums, and the state of the node that is worst off."""
    words = [state_word(one) for one in nodes]
    worst = min(words, key=list(TONES).index)
    those = [one for one, word in zip(nodes, words, strict=True) if word == worst]
    return {
        "key": nodes[0].key[:MOST_TEXT],
        "name": (_first(one.name for one in nodes) or nodes[0].key)[:MOST_TEXT],
        "kind": _first(one.kind for one in nodes)[:MOST_TEXT],
        "address": _first(one.address for one in nodes)[:MOST_TEXT],
        "state": worst,
        "tone": TONES[worst],
        "why": _first(one.why for one in those)[:MOST_TEXT],
        "since": min((one.since for one in those if one.since > 0), default=None),
        "time": max((one.time for one in nodes if one.time > 0), default=None),
        "nodes": len(nodes),
        "behind_rows": _sum(one.behind_rows for one in nodes),
        "behind_seconds": max(0.0, *(float(one.behind_seconds) for one in nodes)),
        "sent_rows": _sum(one.sent_rows for one in nodes),
        "refused_rows": _sum(one.refused_rows for one in nodes),
        "link": _first(_link(one.known.get("link")) for one in nodes),
    }


def _first(texts: Iterable[str]) -> str:
    return next((text for text in texts if text), "")


def _sum(counts: Iterable[int]) -> int:
    return min(sum(max(0, count) for count in counts), MOST_COUNT)


def _link(given: object) -> str:
    """Return a web address that a person may open; empty if it is anything else, or holds a password."""
    text = given if isinstance(given, str) and len(given) <= MOST_LINK and given.isprintable() else ""
    try:
        parts = urlsplit(text)
    except ValueError:
        return ""
    is_web = parts.scheme in {"http", "https"} and bool(parts.netloc)
    return text if is_web and "@" not in parts.netloc and " " not in text else ""
