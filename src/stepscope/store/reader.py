"""Read a run from its folder, while it is written or long after."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from stepscope.core.errors import UsageError
from stepscope.core.vocabulary import Metric, metric_of, spellings
from stepscope.store import series as shapes
from stepscope.store.console import ConsoleAnswer, ConsoleQuery, read_console
from stepscope.store.console_steps import steps_of
from stepscope.store.curves import Ask, select, totals
from stepscope.store.events import read_events
from stepscope.store.machine import MachineDescription, declared, read_machines
from stepscope.store.meta import read_meta
from stepscope.store.parquet import EVERYTHING, Selection, connect
from stepscope.store.points import Points
from stepscope.store.rank_grid import RankGrid, rank_grid
from stepscope.store.snapshot import Snapshot, take_snapshot
from stepscope.store.states import overall, read_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    import duckdb

    from stepscope.store.block_cache import BlockCache
    from stepscope.store.layout import RunFolder
    from stepscope.store.pyramid import Blocks

_T = TypeVar("_T")
EVERY_LINE = ConsoleQuery()
"""The first lines of all ranks; see `ConsoleQuery.limit`."""
RELISTS = 5
"""How often to list again when files are sealed, merged or deleted during a read."""


class Past:
    """A recorded run. Every call reads the current state, so a live run can be followed."""

    def __init__(
        self, folder: RunFolder, connection: duckdb.DuckDBPyConnection | None = None, cache: BlockCache | None = None
    ) -> None:
        """Open the run in `folder`, to be read with a connection of this thread; use `stepscope.open`.

        To open many runs again and again, pass the same `cache` of blocks to each.

        Raises:
            StepscopeError: there is no run, or its run.json cannot be read.
        """
        self._folder = folder
        self.cache = cache
        self.meta: dict[str, Any] = read_meta(folder)
        self.id: str = self.meta["id"]
        self.name: str = self.meta.get("name") or self.id
        self.project: str = self.meta.get("project") or ""
        self.config: Any = self.meta.get("config")
        labels = self.meta["labels"]
        self.tags: tuple[str, ...] = labels["tags"]
        self.notes: str = labels["notes"]
        self.group: str = labels["group"]
        self._problems: dict[str, None] = {}
        if connection is not None:
            self._connection = connection

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._folder.path

    @property
    def state(self) -> str:
        """running, finished, failed, killed, oom-killed, preempted or lost."""
        return overall(read_nodes(self._folder)[0])[0]

    @property
    def cause(self) -> str:
        """Why the run ended as it did; empty if unknown, or if it ended well."""
        return overall(read_nodes(self._folder)[0])[1]

    @property
    def attempts(self) -> list[int]:
        """Numbers of the attempts, in order."""
        nodes, _ = read_nodes(self._folder)
        return sorted({node.attempt for node in nodes})

    def names(self) -> list[str]:
        """Return the names of all metrics, sorted."""
        return self._steadily(lambda snapshot: sorted(snapshot.counts()))

    def series(
        self,
        name: str,
        rank: int | None = None,
        attempt: int | None = None,
        step_range: tuple[int, int] | None = None,
        points: int | None = None,
    ) -> shapes.Series:
        """Return one metric as numpy arrays.

        Args:
            name: as recorded, or another documented spelling of it ("lr" for "learning_rate").
            rank: only this rank; all by default, one after another.
            attempt: only this attempt; all by default.
            step_range: first and last step, inclusive.
            points: approximate number of buckets to downsample to; every minimum, maximum and non-finite point is kept.

        Raises:
            UsageError: the run has no such metric.
        """
        ranks, attempts = None if rank is None else (rank,), None if attempt is None else (attempt,)

        def read(snapshot: Snapshot) -> shapes.Series:
            recorded, factor = self._find(snapshot, name)
            if points is None:
                every = self._points(snapshot, Selection({recorded}, ranks, attempts, step_range))
                return _scaled(shapes.whole(name, every), name, factor)
            ask = Ask((recorded,), points, ranks, attempts, step_range)
            found = self._downsampled(snapshot, ask, self.cache)
            return _scaled(found.get(recorded) or shapes.whole(name, Points.empty()), name, factor)

        return self._steadily(read)

    def overview(self, names: Collection[str] | None = None, points: int = 1000) -> dict[str, shapes.Series]:
        """Return many metrics as `series(name, points=points)` does, read together: fifty cost little more than one.

        Args:
            names: as recorded; all by default. Names that the run does not have are left out.
            points: approximate number of buckets of each.
        """

        def read(snapshot: Snapshot) -> dict[str, shapes.Series]:
            return self._downsampled(snapshot, Ask(tuple(snapshot.counts() if names is None else names), points))

        return self._steadily(read)

    def totals(self, names: Collection[str] | None = None) -> Blocks:
        """Return one block per series (name, rank, attempt), ordered by name: exact count, extremes, mean, last value.

        It is quick for any number of steps. Names that the run does not have are left out; None takes all.
        """
        return self.read(lambda snapshot, connection: totals(snapshot, connection, names, self.cache))

    def by_rank(
        self,
        name: str,
        buckets: int = 200,
        attempt: int | None = None,
        step_range: tuple[int, int] | None = None,
    ) -> RankGrid:
        """Return one metric as arrays of ranks and buckets of steps, from the pyramid: quick for hundreds of ranks.

        Args:
            name: as in `series`.
            buckets: maximum number of buckets.
            attempt: only this attempt; the last by default.
            step_range: first and last step, inclusive.

        Raises:
            UsageError: the run has no such metric.
        """
        chosen = max(self.attempts, default=0) if attempt is None else attempt

        def read(snapshot: Snapshot) -> RankGrid:
            recorded, factor = self._find(snapshot, name)
            ask = Ask((recorded,), buckets, None, (chosen,), step_range)
            found, problems = rank_grid(snapshot, self._connection, ask, self.cache)
            self._note(problems)
            scaled = {key: getattr(found, key) * factor for key in ("mean", "low", "high")} if factor != 1.0 else {}
            return replace(found, name=name, **scaled)

        return self._steadily(read)

    def summary(self, name: str, window: int | None = None) -> dict[str, Any]:
        """Return count, mean, std (population), min, max, p50, p95, p99, last and nonfinite of a metric.

        Args:
            name: as in `series`.
            window: only this many of the last points.

        Raises:
            UsageError: the run has no such metric.
        """
        value = self.series(name).value
        return shapes.summarize(value if window is None else value[-window:])

    def metric(self, name: str) -> Metric | None:
        """Return unit, kind and help of a metric: from the run's own declaration, else from the vocabulary."""
        return declared(self.machines(), name) or metric_of(name)

    def machines(self) -> list[MachineDescription]:
        """Return the watchers' descriptions of their machines: what samples mean, and what could not be sampled."""
        machines, problems = read_machines(self._folder)
        self._note(problems)
        return machines

    def events(self, kind: str | None = None, offsets: Mapping[str, float] | None = None) -> list[dict[str, Any]]:
        """Return the events ordered by time (seconds since 1970 UTC), each with kind, rank, attempt, step and more.

        `offsets` are seconds by node to subtract from the times: by how much its clock is ahead.
        """
        found, problems = read_events(self._folder, offsets)
        self._note(problems)
        return [event for event in found if kind is None or event.get("kind") == kind]

    def console(self, query: ConsoleQuery = EVERY_LINE) -> ConsoleAnswer:
        """Return what the ranks printed, in the order of time, each line with the step its rank had completed.

        Raises:
            UsageError: the query's pattern, level or cursor is not one.
        """
        answer = read_console(self._folder, query)
        self._note(answer.problems)
        if not answer.lines:
            return answer
        return replace(answer, lines=self.read(functools.partial(steps_of, answer.lines)))

    def frame(self) -> Any:
        """Return all points as a pandas or polars frame with columns name, rank, attempt, step, time, value.

        Raises:
            UsageError: neither is installed.
        """
        found = self.points()
        columns = {
            "name": np.array(found.names, dtype=object)[found.name] if len(found) else np.empty(0, object),
            "rank": found.rank,
            "attempt": found.attempt,
            "step": found.step,
            "time": found.time / 1e6,
            "value": found.value,
        }
        from importlib.util import find_spec

        if find_spec("pandas"):
            import pandas as pd

            return pd.DataFrame(columns)
        if find_spec("polars"):
            import polars as pl

            return pl.DataFrame(columns)
        raise UsageError("make a frame", "neither pandas nor polars is installed", "pip install one of them")

    def problems(self) -> list[str]:
        """Return what could not be read so far: damaged blocks, torn files, unknown rows. Normally empty."""
        self.points()
        self.events()
        self._note(read_nodes(self._folder)[1])
        return list(self._problems)

    @property
    def known_problems(self) -> list[str]:
        """What could not be read so far, without reading more."""
        return list(self._problems)

    def points(self, names: list[str] | None = None) -> Points:
        """Return the points of some metrics, or of all, ordered by name, rank, attempt and sequence."""
        selection = EVERYTHING if names is None else Selection(set(names))
        return self._steadily(lambda snapshot: self._points(snapshot, selection))

    def read(self, how: Callable[[Snapshot, duckdb.DuckDBPyConnection], tuple[_T, list[str]]]) -> _T:
        """Return the result of a file reader, and keep what it could not read as a problem of the run."""

        def both(snapshot: Snapshot) -> _T:
            found, problems = how(snapshot, self._connection)
            self._note(problems)
            return found

        return self._steadily(both)

    @functools.cached_property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        return connect()

    def _find(self, snapshot: Snapshot, name: str) -> tuple[str, float]:
        known = snapshot.counts()
        for candidate, factor in [(name, 1.0), *spellings(name)]:
            if candidate in known:
                return candidate, factor
        from difflib import get_close_matches

        near = get_close_matches(name, list(known), 1)
        remedy = f"did you mean {near[0]!r}?" if near else "names() lists what there is"
        raise UsageError(f"read metric {name!r}", f"run {self.id} has none of that name", remedy)

    def _steadily(self, read: Callable[[Snapshot], _T]) -> _T:
        """Read from a snapshot of the folder; list again if a file disappears meanwhile."""
        for _ in range(RELISTS):
            try:
                snapshot = take_snapshot(self._folder)
                result = read(snapshot)
            except FileNotFoundError:  # sealed, merged or deleted since the listing
                continue
            self._note(snapshot.problems)
            return result
        snapshot = take_snapshot(self._folder)
        return read(snapshot)

    def _downsampled(self, snapshot: Snapshot, ask: Ask, cache: BlockCache | None = None) -> dict[str, shapes.Series]:
        points, blocks, problems = select(snapshot, self._connection, ask, cache)
        self._note(problems)
        found = {name: shapes.at_most(name, part, ask.points) for name, part in shapes.by_name(points)}
        for name, part in shapes.by_name(blocks):
            found[name] = shapes.from_blocks(name, shapes.merge(part, ask.points))
        return found

    def _points(self, snapshot: Snapshot, selection: Selection) -> Points:
        found, problems = snapshot.points(selection, self._connection if snapshot.units else None)
        self._note(problems)
        return found

    def _note(self, problems: list[str]) -> None:
        self._problems.update(dict.fromkeys(problems))

    def __repr__(self) -> str:
        return f"<stepscope run {self.id} in {self.path}>"


def _scaled(found: shapes.Series, name: str, factor: float) -> shapes.Series:
    """Return the series under the requested name, in the unit that the name implies."""
    if factor == 1.0:
        return replace(found, name=name)
    blocks = found.buckets
    if blocks is not None:
        figures = {key: getattr(blocks, key) * factor for key in ("min", "max", "mean", "last")}
        blocks = replace(blocks, **figures, in_ns=np.zeros(len(blocks), bool))
    return replace(found, name=name, value=found.value * factor, buckets=blocks)
