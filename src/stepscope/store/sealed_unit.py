"""What is known of a sealed unit, and the names of its files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.store.checksum import Problem, UnitSum

POINTS, BLOCKS, SUM = ".parquet", ".blocks.parquet", ".sum"


@dataclass(frozen=True, slots=True)
class Sealed:
    """One sealed unit, described by its `.sum`."""

    path: Path
    """The file of points."""
    names: dict[str, int]
    """Points of each name."""
    last_seq: dict[str, int]
    """Highest record sequence by rank; without a `.sum`, only that of its points."""
    first_time: int
    """Microseconds since 1970 UTC; 0 in a unit without points."""
    last_time: int
    info: dict[str, Any] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    sums: UnitSum | None = None
    """None if the `.sum` is missing or damaged: the file is then read without verification."""

    @property
    def blocks_path(self) -> Path:
        """Return the path of the pyramid."""
        return beside(self.path, BLOCKS)


def beside(path: Path, part: str) -> Path:
    """Return the path of another file of a unit, by its ending."""
    return path.with_name(path.name.removesuffix(POINTS) + part)
