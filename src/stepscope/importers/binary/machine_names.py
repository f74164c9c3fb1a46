"""What trackers call the figures of the machine that they sample themselves, in our names and units."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stepscope.importers.words import scaled

if TYPE_CHECKING:
    from collections.abc import Sequence

MachineName = tuple[re.Pattern[str], str, float]
"""A pattern of the tracker's names, our name for them, and the factor to its unit."""


def machine_metric(name: str, value: float, table: Sequence[MachineName]) -> tuple[str, float]:
    """Return our name and the value in its unit; the first pattern that matches counts, and the last one must."""
    pattern, ours, factor = next(row for row in table if row[0].fullmatch(name))
    return pattern.sub(ours, name, count=1), scaled(value, factor)
