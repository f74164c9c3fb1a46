"""Requests of people about the alerts of a live run: small files in its folder, read by its watchers.

Every watcher of a run reads every request and handles what concerns it; handling one twice changes nothing. The name of
the file contains when the request expires: after an hour, or at the end of a silence. A watcher that is restarted
handles the requests again that have not expired.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.core.errors import UsageError
from stepscope.store.layout import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = "requests"
ACKNOWLEDGE, SILENCE, UNSILENCE, TEST = KINDS = ("acknowledge", "silence", "unsilence", "test")
MAX_BYTES = 4096
MOST = 1000
"""Maximum requests that are read; more are a mistake."""
LASTS, LONGEST_SILENCE = 3600.0, 30 * 24 * 3600.0
"""Seconds that a request is valid at least, and that a silence may last."""


class UserRequest(NamedTuple):
    """One request."""

    id: str
    do: str
    time: float
    """When it was made (unix seconds)."""
    facts: dict[str, Any]
    """alert (an id or the name of a rule) to acknowledge; rule (a pattern) and until to silence; channel to test."""


def ask(run: str | os.PathLike[str], facts: Mapping[str, Any], now: float | None = None) -> str:
    """Put a request into a run's folder and return its id; its watchers read it within about a second.

    Args:
        run: the run's folder.
        facts: `{"do": "acknowledge", "alert": ID}`; `{"do": "silence", "rule": "gpu_*", "seconds": 3600}`;
            `{"do": "unsilence", "rule": ...}`; `{"do": "test"}`, for one `"channel": NAME`. `by`: who asks.
        now: unix seconds.

    Raises:
        UsageError: the request is invalid.
        OSError: it cannot be written.
    """
    when = time.time() if now is None else now
    checked = check(facts, when)
    folder = Path(run) / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    until = max(when + LASTS, float(checked.get("until", 0.0)))
    name = f"{int(when * 1000)}-{int(until * 1000)}-{os.urandom(4).hex()}"
    data = json.dumps({**checked, "time": when}).encode()
    if len(data) > MAX_BYTES:
        raise UsageError("ask that", "it is too long", "use shorter names")
    replace(folder / f"{name}.json", data)
    return name


def check(facts: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return a complete request; UsageError if it is invalid."""
    do = facts.get("do")
    if do not in KINDS:
        raise UsageError(f"ask for {str(do)[:40]!r}", "there is no such request", f"known are {', '.join(KINDS)}")
    found: dict[str, Any] = {"do": do, "by": str(facts.get("by", ""))[:100]}
    if do == ACKNOWLEDGE:
        return found | {"alert": _text(facts, "alert")}
    if do == TEST:
        return found | {"channel": str(facts.get("channel", ""))[:100]}
    found["rule"] = _text(facts, "rule")
    if do == SILENCE:
        seconds = facts.get("seconds", 3600.0)
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= LONGEST_SILENCE:
            raise UsageError("silence a rule", "its seconds are no number up to 30 days", "give some, such as 3600")
        found["until"] = now + float(seconds)
    return found


def _text(facts: Mapping[str, Any], key: str) -> str:
    value = facts.get(key)
    if not isinstance(value, str) or not value or len(value) > 200:
        raise UsageError(f"ask to {facts.get('do')}", f"it names no {key}", f"give the {key}")
    return value


class Inbox:
    """The requests to one run; each watcher reads each of them once."""

    def __init__(self, run: Path) -> None:
        """Read the folder of `run`; most runs have none."""
        self._folder = run / FOLDER
        self._taken: set[str] = set()
        self._seen = -1

    def new(self, now: float) -> list[UserRequest]:
        """Return the requests since the last call, the oldest first; never raises. `now` in unix seconds."""
        try:
            changed = self._folder.stat().st_mtime_ns
            if changed == self._seen and not self._taken:
                return []
            names = sorted(entry.name for entry in os.scandir(self._folder) if entry.name.endswith(".json"))[:MOST]
        except OSError:  # almost always: there are no requests
            return []
        self._seen = changed
        found = []
        for name in names:
            if _has_expired(name, now):
                with contextlib.suppress(OSError):
                    (self._folder / name).unlink()
                self._taken.discard(name)
            elif name not in self._taken:
                self._taken.add(name)
                request = self._read(name)
                found += [] if request is None else [request]
        return found

    def _read(self, name: str) -> UserRequest | None:
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                facts = json.loads(os.read(descriptor, MAX_BYTES))
            finally:
                os.close(descriptor)
            when = float(facts["time"])
            if facts.get("do") == SILENCE and not isinstance(facts.get("until"), (int, float)):
                return None
            checked = check({**facts, "seconds": 1.0}, when)
            if "until" in checked:
                checked["until"] = float(facts["until"])
            return UserRequest(name.removesuffix(".json"), checked["do"], when, checked)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError):
            return None  # the sender gets no answer, and reports that


def _has_expired(name: str, now: float) -> bool:
    """Return whether a request has expired; also true for a name that `ask` did not write."""
    stamp = name.split("-")[1] if name.count("-") == 2 else ""
    return not (stamp.isdecimal() and stamp.isascii() and now < int(stamp[:15]) / 1000)
