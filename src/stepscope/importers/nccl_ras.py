"""The output of `ncclras -f json` and `rcclras -f json`, also where it is not valid JSON, cut, or text."""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any

MOST_BYTES = 64 << 20
_GAP = re.compile(r"([}\]\"0-9el])([^\S\n]*\n\s*)(?=[{\"\[])")
"""Two values or fields with a line break and no comma between them, as NCCL 2.28.9 writes in `missing_ranks`."""
_NEITHER = re.compile(r",(\s*[}\]])")
MOST_TRIES, TAIL, MOST_DEPTH = 20, 64 << 10, 100
"""Places at which a cut output is closed on trial, characters before its end in which they are, and open brackets."""
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\]]|[^\s",:{}\[\]]+', re.DOTALL)
"""A text, also one without its end, a bracket, or a word; it never goes back, so that time grows with the length."""
_STATUS = re.compile(r"Rank (\d{1,9}).{0,200}?(?:is |status:? )(missing|dead|unresponsive|RUNNING|INIT|ABORT\w*)")


def parse(data: bytes) -> dict[str, Any]:
    """Return the report as NCCL's own dict; ValueError with the reason if it holds none.

    Output as text gives `text`, with the ranks that it calls missing or dead as `missing_ranks`.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"it is longer than {MOST_BYTES >> 20} MiB")
    text = data.decode("utf-8", "replace").strip("\0\r\n\t ")
    start = text.find("{")
    if start < 0:
        return _of_text(text)
    for candidate in (text[start:], _mended(text[start:])):
        try:
            found, _ = json.JSONDecoder().raw_decode(candidate)
        except (ValueError, RecursionError):
            continue  # the next candidate is mended or closed
        if isinstance(found, dict):
            return found
    return _closed(_mended(text[start:]))


def _mended(text: str) -> str:
    """Return JSON with the commas that NCCL left out, and without those that it wrote too many."""
    return _NEITHER.sub(r"\1", _GAP.sub(r"\1,\2", text))


def _closed(text: str) -> dict[str, Any]:
    """Return what is complete of a cut output: it is cut behind one of its last values, and all brackets are closed."""
    ends: deque[tuple[int, str]] = deque(maxlen=MOST_TRIES)
    brackets: list[str] = []
    for token in _TOKEN.finditer(text):
        first = token[0][0]
        if first in "{[":
            brackets.append("}" if first == "{" else "]")
        elif first in "}]" and brackets:
            brackets.pop()
        if len(brackets) > MOST_DEPTH:
            break
        if first not in "{[" and token.end() > len(text) - TAIL:
            ends.append((token.end(), "".join(reversed(brackets))))
    for end, closing in reversed(ends):
        try:
            found = json.loads(text[:end] + closing)
        except (ValueError, RecursionError):
            continue  # a key without its value, or half a text: an earlier end may be a whole value
        if isinstance(found, dict):
            return {**found, "is_cut": True}
    raise ValueError("it is cut too early, or no output of ncclras")


def _of_text(text: str) -> dict[str, Any]:
    if "RAS" not in text and "NCCL" not in text and "Communicator" not in text:
        raise ValueError("it is no output of ncclras")
    gone = [{"rank": int(rank), "status": state} for rank, state in _STATUS.findall(text) if state != "RUNNING"]
    return {"text": text[:4000], "missing_ranks": gone}
