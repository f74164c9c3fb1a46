"""The ranks of a run's newest attempt: where each one is, how long its steps take, and how late it is.

The ranks of one job meet in every step, so their steps take equally long. What differs is a rank's own time: its step
without the phases in which it may wait for others. A rank is late by its own time beyond the median of the other ranks.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.stragglers.lateness import beyond_others
from stepscope.core.events import ours
from stepscope.core.vocabulary import MEETING, phase_place, unit_of
from stepscope.sources.attempts import PHASE, STEP, nodes_of
from stepscope.sources.rank_blame import blamed_ranks
from stepscope.sources.rank_places import Whereabouts, places_of
from stepscope.store.rank_matrix import MatrixAsk, rank_matrix
from stepscope.store.states import newest_attempt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.core.arrays import Floats, Integers
    from stepscope.store.rank_matrix import RankMatrix
    from stepscope.store.reader import Past
    from stepscope.store.states import RankState

RECENT = 512
"""Newest steps that the figures of a rank are means of, unless a range is given."""
LATE = "step"
"""What a map shows by default: how late each rank is."""
WAITING = tuple(f"{PHASE}{name}" for name in MEETING)
WELL = ("running", "finished")
"""States of a rank that need no attention."""


@dataclass(frozen=True)
class RankRow:
    """One rank. Figures are means per step over the steps of the table; None where nothing was recorded."""

    rank: int
    node: str = ""
    state: str = ""
    cause: str = ""
    stall: str = ""
    """"", "stalled" or "hung"; "" once it has ended."""
    step: int | None = None
    """Its newest step."""
    behind_steps: int | None = None
    """Steps behind the first rank."""
    behind_seconds: float | None = None
    """What these steps usually take, in seconds."""
    last_phase: str = ""
    """The phase in which an event last found it."""
    slowest_phase: str = ""
    """The phase in which it is the most beyond the median of the other ranks."""
    slowest_seconds: float | None = None
    """By how much."""
    step_seconds: float | None = None
    own_seconds: float | None = None
    late_seconds: float | None = None
    """Own time beyond the median of the other ranks; negative for a rank that is faster."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each phase."""
    beyond: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each phase beyond the median of the other ranks."""
    place: Whereabouts = field(default_factory=Whereabouts)

    @property
    def is_well(self) -> bool:
        """Whether it runs, or ended as it should."""
        return self.state in WELL and not self.stall


@dataclass(frozen=True)
class RankSheet:
    """The ranks of one attempt, ascending, and what the median rank does."""

    attempt: int
    rows: Sequence[RankRow]
    steps: tuple[int, int]
    """First and last step that the figures are from; (0, -1) without any."""
    usual_seconds: float | None = None
    """Seconds of a step of the median rank."""
    usual_phases: Mapping[str, float] = field(default_factory=dict)
    """Median over the ranks of the seconds of each phase."""
    is_own: bool = True
    """Whether own time was measured; otherwise whole steps are compared."""
    blamed: Mapping[int, str] = field(default_factory=dict)
    """The ranks that are the cause of a hang or of the end, each with what it did, in words."""


@dataclass(frozen=True)
class RankMap:
    """One quantity by rank and bucket of steps."""

    what: str
    unit: str
    ranks: Integers
    edges: Integers
    """First step of each bucket, and the step after the last."""
    values: Floats
    """A row for each rank; NaN where nothing was recorded."""
    usual: Floats
    """Median over the ranks of each bucket; of the step time where the map shows how late ranks are."""
    is_difference: bool
    """Whether the values are seconds beyond the median of the other ranks."""
    steps: tuple[int, int]
    """First and last step that was recorded in the range; (0, -1) if there is none."""
    level: int = 1
    """Steps of the blocks that were read; 1: every step."""


def rank_table(
    past: Past, steps: tuple[int, int] | None = None, names: Sequence[str] | None = None, *, figures_only: bool = False
) -> RankSheet:
    """Return the ranks of the newest attempt; figures are from `steps`, by default the newest that were recorded.

    `names` are the metrics of the run, if they are known already. With `figures_only`, the rows have no places and no
    last phases, which saves reading samples and events.
    """
    nodes = nodes_of(past)
    attempt = newest_attempt(nodes)
    current = [node for node in nodes if node.attempt == attempt]
    states = {rank: (node.node, state) for node in current for rank, state in node.ranks.items()}
    newest = max((state.step for _, state in states.values() if state.step is not None), default=None)
    span = steps if steps is not None or newest is None else (max(0, newest - RECENT + 1), newest)
    timed = [name for name in (past.names() if names is None else names) if name == STEP or name.startswith(PHASE)]
    grid = rank_matrix(past, MatrixAsk(tuple(timed), attempt, span, 1))
    figures = _figures(grid)
    places, phases, blamed = dict[int, Whereabouts](), dict[int, str](), dict[int, str]()
    if not figures_only:
        blamed = blamed_ranks(past, attempt, [state for _, state in states.values()])
        places = places_of(past, attempt, {rank: node for rank, (node, _) in states.items()})
        phases = _last_phases(past, attempt)
    rows = []
    for rank in sorted({*states, *grid.ranks.tolist()}):
        node, state = states.get(rank, ("", None))
        facts = _life(state, newest, figures.usual) | figures.of(rank)
        rows.append(
            RankRow(rank, node, last_phase=phases.get(rank, ""), place=places.get(rank, Whereabouts()), **facts)
        )
    return RankSheet(attempt, rows, grid.steps, figures.usual, figures.median, figures.is_own, blamed)


def _life(state: RankState | None, newest: int | None, usual: float | None) -> dict[str, Any]:
    """Return how a rank is doing, as `RankRow` has it."""
    if state is None:
        return {}
    behind = None if state.step is None or newest is None else newest - state.step
    return {
        "state": state.state,
        "cause": state.cause,
        "stall": state.stall if state.state == "running" else "",
        "step": state.step,
        "behind_steps": behind,
        "behind_seconds": None if behind is None or usual is None else behind * usual,
    }


@dataclass(frozen=True)
class _Figures:
    """Means over one range of steps, by rank."""

    ranks: dict[int, int]
    step: Floats
    own: Floats
    phases: dict[str, Floats]
    is_own: bool

    @functools.cached_property
    def late(self) -> Floats:
        return beyond(self.own[:, np.newaxis])[:, 0]

    @functools.cached_property
    def beyond(self) -> dict[str, Floats]:
        return {name: beyond(seconds[:, np.newaxis])[:, 0] for name, seconds in self.phases.items()}

    @property
    def usual(self) -> float | None:
        return _number(_median(self.step)) if len(self.step) else None

    @functools.cached_property
    def median(self) -> dict[str, float]:
        found = {name: _number(_median(values)) for name, values in self.phases.items()}
        return {name: value for name, value in found.items() if value is not None}

    def of(self, rank: int) -> dict[str, Any]:
        """Return the figures of one rank, as `RankRow` has them."""
        at = self.ranks.get(rank)
        if at is None:
            return {}
        phases = {name: value for name, values in self.phases.items() if (value := _number(values[at])) is not None}
        beyond = {name: value for name in phases if (value := _number(self.beyond[name][at])) is not None}
        slowest = max((name for name in beyond if name not in MEETING), key=lambda name: beyond[name], default="")
        return {
            "step_seconds": _number(self.step[at]),
            "own_seconds": _number(self.own[at]),
            "late_seconds": _number(self.late[at]),
            "phases": phases,
            "beyond": beyond,
            "slowest_phase": slowest,
            "slowest_seconds": beyond.get(slowest),
        }


def _figures(grid: RankMatrix) -> _Figures:
    ranks = {rank: at for at, rank in enumerate(grid.ranks.tolist())}
    empty = np.full(len(ranks), np.nan)
    step = grid.cells[STEP].mean[:, 0] if STEP in grid.cells else empty
    phases = {name.removeprefix(PHASE): _per_step(grid, name)[:, 0] for name in grid.cells if name.startswith(PHASE)}
    own, is_own = own_seconds(grid)
    ordered = sorted(phases, key=lambda name: (phase_place(name), name))
    return _Figures(ranks, step, own[:, 0] if own.size else empty, {name: phases[name] for name in ordered}, is_own)


def own_seconds(grid: RankMatrix) -> tuple[Floats, bool]:
    """Return the own time of each rank in each bucket, and whether it was measured; whole steps otherwise."""
    shape = len(grid.ranks), max(0, len(grid.edges) - 1)
    step = grid.cells[STEP].mean if STEP in grid.cells else np.full(shape, np.nan)
    waiting = [_per_step(grid, name) for name in WAITING if name in grid.cells]
    if not waiting:
        return step, False
    waited = np.sum([np.nan_to_num(each) for each in waiting], axis=0)
    measured = np.any([np.isfinite(each) for each in waiting], axis=0)
    return np.where(measured, np.maximum(0.0, step - waited), np.nan), True


def beyond(values: Floats) -> Floats:
    """Return by how much each rank exceeds the median of the others in each bucket; NaN without any others."""
    found = np.full(values.shape, np.nan)
    for bucket, column in enumerate(values.T):
        known = np.isfinite(column)
        if known.sum() > 1:
            found[known, bucket] = beyond_others(column[known])
    return found


def _per_step(grid: RankMatrix, name: str) -> Floats:
    """Return the seconds of a phase per step whose phases were measured: a step without the phase counts as 0."""
    phases = [cells.count for one, cells in grid.cells.items() if one.startswith(PHASE)]
    measured = np.max(phases, axis=0)
    own = grid.cells[name]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(measured > 0, np.nan_to_num(own.mean) * own.count / measured, np.nan)


def rank_map(past: Past, what: str = LATE, steps: tuple[int, int] | None = None, buckets: int = 160) -> RankMap:
    """Return a quantity by rank and bucket of steps: how late each rank is (`LATE`), else a metric as recorded."""
    attempt = newest_attempt(nodes_of(past))
    names = (STEP, *WAITING) if what == LATE else (what,)
    grid = rank_matrix(past, MatrixAsk(names, attempt, steps, buckets))
    if what == LATE:
        own, _ = own_seconds(grid)
        values, unit = beyond(own), "seconds"
        usual = _median(grid.cells[STEP].mean if STEP in grid.cells else own)
    else:
        values = grid.cells[what].mean if what in grid.cells else np.full((len(grid.ranks), 0), np.nan)
        metric = past.metric(what)
        usual, unit = _median(values), unit_of(what) if metric is None else metric.unit
    return RankMap(what, unit, grid.ranks, grid.edges, values, usual, what == LATE, grid.steps, grid.level)


def _last_phases(past: Past, attempt: int) -> dict[int, str]:
    """Return the phase in which an event last found each rank."""
    found: dict[int, str] = {}
    for event in ours(past.events()):
        rank, phase = event.get("rank"), event.get("phase")
        if rank is not None and phase and event.get("attempt", attempt) == attempt:
            found[rank] = phase
    return found


def _median(values: Floats) -> Floats:
    """Return the median over the ranks, without those that have no value."""
    if not values.size:
        return np.full(values.shape[1:], np.nan)
    known = np.isfinite(values).any(axis=0)
    found = np.full(values.shape[1:], np.nan)
    if values.ndim == 1:
        return np.asarray(np.nanmedian(values) if known else np.nan)
    found[known] = np.nanmedian(values[:, known], axis=0)
    return found


def _number(value: Any) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None
