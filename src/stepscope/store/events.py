"""Read the events of a run: one JSON object a line, one file a watcher."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.store.layout import RunFolder


def read_events(folder: RunFolder) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the events in order of time, each once, and what was wrong with their files."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    problems: list[str] = []
    for path in sorted((folder.path / "events").glob("[!.]*.jsonl")):
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError as error:
            problems.append(f"{path.name}: {error}")
            continue
        torn = lines.pop()  # what follows the last line end is still being written
        damaged = 0
        for number, line in enumerate(lines):
            event = _parse(line)
            if event is None:
                damaged += bool(line)
                continue
            # A watcher that was killed between two writes is followed by one that writes the same event again.
            key = (path.name, event.get("rank"), event.get("sequence", f"line {number}"))
            found.setdefault(key, event)
        if damaged:
            problems.append(f"{path.name}: {damaged} damaged lines were passed over")
        del torn
    return sorted(found.values(), key=lambda event: (event["time"], event.get("sequence", -1))), problems


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
        return {**event, "time": event["time"] / 1e6}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
