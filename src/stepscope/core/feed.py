"""Feeds: everything that gets a watcher's rows and samples while the run goes on (Prometheus, TensorBoard, alerts)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from stepscope.core.columns import SchemaTable


class Drained(NamedTuple):
    """Drained records of one rank, and what is needed to decode them (see `core.records`)."""

    rank: int
    data: bytes
    table: SchemaTable
    checked: bool
    """Whether every record ends with a checksum."""


class Subject(NamedTuple):
    """The run that is watched, as labels and file names need it."""

    run: str
    project: str
    node: str
    folder: Path
    """The run's folder."""


class Feed:
    """Gets the rows and samples of one watcher. This base only hands them to its parts; a feed overrides what it needs.

    The watcher alone sleeps. A feed that serves clients names its descriptors, and the watcher calls `serve` when one
    of them is ready.
    """

    parts: Sequence[Feed] = ()

    def __init__(self, parts: Sequence[Feed] = ()) -> None:
        """Hand everything to `parts`, in this order; without any, ignore it."""
        self.parts = parts

    def rows(self, rank: int, pieces: Iterable[bytes], table: SchemaTable, *, checked: bool = False) -> None:
        """Take drained records of a rank."""
        pieces = list(pieces)
        for feed in self.parts:
            feed.rows(rank, pieces, table, checked=checked)

    def sample(self, rank: int, values: Mapping[str, float]) -> None:
        """Take a row that the watcher made itself; its rank is below 0."""
        for feed in self.parts:
            feed.sample(rank, values)

    def end(self, rank: int) -> None:
        """Forget a rank that has ended."""
        for feed in self.parts:
            feed.end(rank)

    def descriptors(self) -> Mapping[int, int]:
        """Return the descriptors that `serve` waits for, with their events as `select.poll` names them."""
        return {descriptor: events for feed in self.parts for descriptor, events in feed.descriptors().items()}

    def serve(self) -> None:
        """Do what is due, without waiting: answer clients, flush files. Called at least once per tick."""
        for feed in self.parts:
            feed.serve()

    def close(self) -> None:
        """Stop. May be called again."""
        for feed in self.parts:
            feed.close()
