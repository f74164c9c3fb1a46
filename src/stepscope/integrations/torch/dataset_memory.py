"""Memory of a dataset: the bytes of its arrays and tensors, with those of its caches separate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEPTH = 4
"""Maximum depth of attributes, lists and dictionaries below the dataset."""
MOST = 10_000
"""Maximum objects examined: beyond it the answer is "unknown" rather than slow."""


class _Search:
    """One traversal of a dataset."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.data = 0
        self.cache: int | None = None

    def visit(self, thing: Any, depth: int, *, cached: bool) -> None:
        """Add up the bytes in `thing`; `cached` if a parent is called a cache."""
        if id(thing) in self.seen or len(self.seen) >= MOST:
            return
        self.seen.add(id(thing))
        size = len(thing) if isinstance(thing, (bytes, bytearray, str)) else getattr(thing, "nbytes", None)
        amount = size if isinstance(size, int) else 0
        if cached:
            self.cache = (self.cache or 0) + amount
        else:
            self.data += amount
        if isinstance(size, int) or depth == 0:
            return
        for name, part in _parts(thing):
            self.visit(part, depth - 1, cached=cached or "cache" in name.lower())


def _parts(thing: Any) -> list[tuple[str, Any]]:
    if isinstance(thing, Mapping):
        return [(str(name), part) for name, part in list(thing.items())[:MOST]]
    if isinstance(thing, (list, tuple)):
        return [("", part) for part in thing[:MOST]]
    return list(vars(thing).items()) if hasattr(thing, "__dict__") and not isinstance(thing, type) else []


def dataset_bytes(dataset: Any) -> tuple[int | None, int | None]:
    """Return the bytes of a dataset's data, and of its caches; None if unknown.

    Counts arrays, tensors and texts in its attributes, and in lists, dictionaries and datasets below. A dataset with
    more than 10 000 such objects is not estimated.
    """
    search = _Search()
    search.visit(dataset, DEPTH, cached=False)
    if len(search.seen) >= MOST:
        return None, None
    return search.data or None, search.cache
