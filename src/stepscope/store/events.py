"""The events of a run: one JSON object per line, each with a checksum, in one file per watcher."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from stepscope.core.events import USER, WRITTEN_BY, fits, is_users
from stepscope.store.checked_line import decode_line, encode_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stepscope.store.layout import RunFolder

MOST_BYTES = 1 << 30
"""Maximum bytes read of one file; a real run has megabytes."""
MOST_FILES = 10_000
"""Maximum event files read; a real run has one per node and attempt."""
MOST_DEPTH = 50
"""Maximum nesting depth."""
MOST_SECONDS = 253_402_300_799.0
"""The end of the year 9999."""
NUMBERS = ("rank", "attempt", "step", "sequence")
SURROGATE = re.compile("[\ud800-\udfff]")


def encode_event(event: Mapping[str, Any]) -> bytes:
    """Return the line of an event, whose `time` is in microseconds since 1970."""
    return encode_line(event)


def decode_event(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line, its `time` in seconds; None if the line is damaged or not an event.

    The kind is text; rank, attempt, step and sequence are integers (a field with another value gets a trailing
    underscore), and no text contains a lone surrogate.
    """
    try:
        event = decode_line(line)
        time = event["time"] / 1e6
        if not 0 <= time <= MOST_SECONDS:
            return None
        if b"\\ud" in line or b"\\uD" in line or line.count(b"[") + line.count(b"{") > MOST_DEPTH:
            event = _clean(event)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    wrong = [key for key in NUMBERS if event.get(key) is not None and not fits(event[key], (int,))]
    event |= {f"{key}_": event.pop(key) for key in wrong}
    kind = event.get("kind", "other")
    found = {**event, "time": time, "kind": kind if isinstance(kind, str) else str(kind)[:100]}
    if is_users(found):
        found[WRITTEN_BY] = USER
    return found


def _clean(value: Any, depth: int = 0) -> Any:
    """Return a value without lone surrogates; raise ValueError if it is nested too deeply."""
    if isinstance(value, str):
        return SURROGATE.sub("\ufffd", value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, (dict, list)):
        return value
    if depth > MOST_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, list):
        return [_clean(one, depth + 1) for one in value]
    return {_clean(key): _clean(one, depth + 1) for key, one in value.items()}


def read_events(
    folder: RunFolder, offsets: Mapping[str, float] | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the events ordered by time, each once, and the problems of their files.

    `offsets` are the seconds by which the clocks of nodes are ahead; they are subtracted from the events' times.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    problems: list[str] = []
    paths = sorted((folder.path / "events").glob("[!.]*.jsonl"))
    if len(paths) > MOST_FILES:
        more = len(paths) - MOST_FILES
        problems.append(f"events: {more} of {len(paths)} files were passed over: too many for one run")
    for path in paths[:MOST_FILES]:
        try:
            lines = _lines(path, problems)
        except OSError as error:
            problems.append(f"{path.name}: {error}")
            continue
        damaged = 0
        ahead = (offsets or {}).get(path.stem.rpartition("-")[0], 0.0)
        for number, line in enumerate(lines):
            event = decode_event(line)
            if event is None:
                damaged += bool(line)
                continue
            _correct(event, ahead)
            # If a watcher is killed between two writes, its successor writes the same event again.
            key = (path.name, event.get("rank"), event.get("sequence", f"line {number}"))
            found.setdefault(key, event)
        if damaged:
            problems.append(f"{path.name}: {damaged} damaged lines were passed over")
    return sorted(found.values(), key=lambda event: (event["time"], event.get("sequence") or -1)), problems


def _correct(event: dict[str, Any], ahead: float) -> None:
    """Subtract from the times of an event by how many seconds its node's clock is ahead."""
    event["time"] -= ahead
    if ahead and isinstance(event.get("since"), float):
        event["since"] -= ahead


def _lines(path: Path, problems: list[str]) -> list[bytes]:
    """Return the complete lines of a file: text after the last newline is still being written."""
    with path.open("rb") as file:
        data = file.read(min(MOST_BYTES, path.stat().st_size))  # a read reserves what it is asked for
        if file.read(1):
            problems.append(f"{path.name}: only its first {MOST_BYTES} bytes were read: too much for one run")
    return data.split(b"\n")[:-1]
