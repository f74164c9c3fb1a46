"""Merge small sealed units into larger ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.store.layout import RunFolder, Writer


def compact(folder: RunFolder, writer: Writer) -> None:
    """Placeholder replaced by the compaction helper."""
