"""Numbers of ranks as text: rank 9, ranks 0-7 and 9, 62 ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_SPANS = 6
"""More spans than this are only counted."""


def spans(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and last rank of each span of neighbours."""
    found: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if found and rank == found[-1][1] + 1:
            found[-1] = (found[-1][0], rank)
        else:
            found.append((rank, rank))
    return found


def who(ranks: Iterable[int]) -> str:
    """Return ranks as text: "rank 9", "ranks 0-7 and 9"; only their number if it would get long."""
    members = sorted(set(ranks))
    if len(members) == 1:
        return f"rank {members[0]}"
    parts = [
        f"{low}-{high}" if high > low + 1 else f"{low}, {high}" if high > low else f"{low}"
        for low, high in spans(members)
    ]
    parts = [piece for part in parts for piece in part.split(", ")]
    if not members or len(parts) > MOST_SPANS:
        return f"{len(members)} ranks"
    return f"ranks {', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else f"ranks {parts[0]}"


def verb(ranks: Iterable[int], one: str, many: str) -> str:
    """Return the form of a verb that suits so many ranks."""
    return one if len(set(ranks)) == 1 else many
