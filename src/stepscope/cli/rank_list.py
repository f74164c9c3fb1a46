"""Ranks as people write them: `3`, `0,4`, `8-15`."""

from __future__ import annotations

import argparse
import re

HIGHEST = 1 << 20
_PART = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")


def rank_list(text: str) -> tuple[int, ...]:
    """Return the ranks of a text such as `3,8-15`, in order, each once; an argparse type."""
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise argparse.ArgumentTypeError(f"{part.strip()!r} is no rank; write ranks as 3, 0,4 or 8-15")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last <= HIGHEST:
            raise argparse.ArgumentTypeError(f"{part.strip()!r} is no range of ranks; write the lower one first")
        found.update(range(first, last + 1))
    return tuple(sorted(found))
