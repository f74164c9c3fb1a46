"""What a dataset holds in memory: the bytes of its arrays and tensors, those of its caches apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEPTH = 4
"""Levels of attributes, lists and dictionaries below the dataset that are looked through."""
MOST = 10_000
"""Objects that are looked at: beyond that the answer is "unknown" and not slow."""


class _Search:
    """One walk through a dataset."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.data = 0
        self.cache: int | None = None

    def visit(self, thing: Any, depth: int, *, cached: bool) -> None:
        """Add up what `thing` holds; `cached` if something above is called a cache."""
        if id(thing) in self.seen or len(self.seen) >= MOST:
            return
        self.seen.add(id(thing))
        size = _size(thing)
        if cached and self.cache is None:
            self.cache = 0
        if size is not None:
            self._add(size, cached=cached)
            return
        if depth == 0:
            return
        for name, part in _parts(thing):
            self.visit(part, depth - 1, cached=cached or "cache" in name.lower())

    def _add(self, size: int, *, cached: bool) -> None:
        if cached:
            self.cache = (self.cache or 0) + size
        else:
            self.data += size


def _size(thing: Any) -> int | None:
    """Return the bytes of an array, tensor or text; None if it is none."""
    if isinstance(thing, (bytes, bytearray)):
        return len(thing)
    if isinstance(thing, str):
        return len(thing)
    size = getattr(thing, "nbytes", None)
    return size if isinstance(size, int) else None


def _parts(thing: Any) -> list[tuple[str, Any]]:
    if isinstance(thing, Mapping):
        return [(str(name), part) for name, part in list(thing.items())[:MOST]]
    if isinstance(thing, (list, tuple)):
        return [("", part) for part in thing[:MOST]]
    return list(vars(thing).items()) if hasattr(thing, "__dict__") and not isinstance(thing, type) else []


def dataset_bytes(dataset: Any) -> tuple[int | None, int | None]:
    """Return the bytes of a dataset's data, and of what it calls a cache; None for what cannot be said.

    Counted are arrays, tensors and texts in its attributes, and in lists, dictionaries and datasets below. Of a
    dataset with more than 10 000 such objects no estimate is made.
    """
    search = _Search()
    search.visit(dataset, DEPTH, cached=False)
    if len(search.seen) >= MOST:
        return None, None
    return search.data or None, search.cache
