"""Names of nodes as people read them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


MARK = 8
"""Hexadecimal digits after the last dot of a node's name, which tell equal host names apart."""


def short_node(node: str) -> str:
    """Return the host name of a node, without the mark that tells equal names apart."""
    host, _, mark = node.rpartition(".")
    return host if host and len(mark) == MARK and all(letter in "0123456789abcdef" for letter in mark) else node


def shown_nodes(nodes: Iterable[str]) -> dict[str, str]:
    """Return how to show each node: by its host name, unless another node has the same."""
    every = set(nodes)
    count = Counter(short_node(node) for node in every)
    return {node: short_node(node) if count[short_node(node)] == 1 else node for node in every}
