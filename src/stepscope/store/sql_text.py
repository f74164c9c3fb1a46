"""Quote texts for SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def quoted(text: Path | str) -> str:
    """Return a text as an SQL literal."""
    return "'" + str(text).replace("'", "''") + "'"
