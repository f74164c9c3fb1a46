"""The output of `ncclras -f json` and `rcclras -f json`, also where it is not valid JSON, cut, or text."""

from __future__ import annotations

import json
import re
from typing import Any

MOST_BYTES = 64 << 20
_GAP = re.compile(r"([}\]\"0-9el])(\s*\n\s*)(?=[{\"\[])")
"""Two values or fields with a line break and no comma between them, as NCCL 2.28.9 writes in `missing_ranks`."""
_NEITHER = re.compile(r",(\s*[}\]])")
MOST_TRIES = 200
"""Places from the end at which a cut output is closed on trial."""
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
    """Return what is complete of a cut output: it is cut at its last whole values, and all brackets are closed."""
    ends = [match.end() for match in re.finditer(r"[}\]\"0-9el](?=\s*(?:[,\n}\]]|$))", text)][-MOST_TRIES:]
    for end in reversed(ends):
        head = text[:end]
        try:
            found = json.loads(head + _brackets(head))
        except (ValueError, RecursionError):
            continue  # an earlier end may be a whole value
        if isinstance(found, dict):
            return {**found, "is_cut": True}
    raise ValueError("it is cut too early, or no output of ncclras")


def _brackets(text: str) -> str:
    """Return the brackets that close all that are open in a text of JSON."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    stack: list[str] = []
    for character in bare:
        if character in "{[":
            stack.append("}" if character == "{" else "]")
        elif character in "}]" and stack:
            stack.pop()
    return "".join(reversed(stack))


def _of_text(text: str) -> dict[str, Any]:
    if "RAS" not in text and "NCCL" not in text and "Communicator" not in text:
        raise ValueError("it is no output of ncclras")
    gone = [{"rank": int(rank), "status": state} for rank, state in _STATUS.findall(text) if state != "RUNNING"]
    return {"text": text[:4000], "missing_ranks": gone}
