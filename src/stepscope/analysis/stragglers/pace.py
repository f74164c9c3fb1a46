"""The pace of a rank in a window of steps: a few small numbers, which a watcher can put into its node's file.

Ranks are compared by these numbers, and never by their clocks. Each number is a low quantile over the steps: another
program delays now this rank, now that one, but leaves some steps alone, while a straggler is late in nearly all.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.series.robust import medians
from stepscope.core.vocabulary import MEETING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.core.arrays import Floats, Integers


CALM = 0.15
"""Quantile over the steps that represents a rank: a straggler is late in at least 85 % of the steps."""
COMMUNICATION = "communication"
TALK = ("comm", "reduce", "gather", "scatter", "broadcast", "exchange", "send", "recv", "receive", "barrier", "p2p")
"""Parts of names of phases in which ranks talk to each other."""
NOW_AND_THEN = ("checkpoint", "evaluation", "compile")
"""Phases that only some ranks may have: a checkpoint of rank 0 is planned, and nobody's fault."""
ERROR = 1.5
"""Standard error of a low quantile, times the square root of the number of steps, as a multiple of their spread."""
PARTS, FEWEST_IN_PART = 4, 5
"""Parts of a window that are compared with each other, and the steps that each must have."""
FEWEST_RANKS = 4
"""Ranks from which their median shows what a step has in common."""
MOST_PHASES = 24
"""Phases of a rank that are kept: the longest."""


def is_talk(phase: str) -> bool:
    """Return whether ranks talk to each other in a phase, by its name."""
    return any(part in phase.lower() for part in TALK)


@dataclass(frozen=True)
class StepTiming:
    """How long a rank takes for a step and its parts, in seconds."""

    rank: int
    seconds: float
    """A step."""
    own_seconds: float
    """A step without the phases in which a rank may wait for others: the backward pass, and communication."""
    working_seconds: float | None = None
    """A step without communication only; None if no communication was measured."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Each phase; empty if none is recorded."""
    noise: float = 0.0
    """Standard error of `own_seconds`."""
    working_noise: float = 0.0
    """Standard error of `working_seconds`; 0 if unknown."""
    steps: int = 0
    """Steps of the window."""
    last: int = -1
    """The newest step of the window; -1 if unknown."""
    node: str = ""
    facts: Mapping[str, float] = field(default_factory=dict)
    """What else is known: see `stepscope.analysis.stragglers.cause.FACTS`."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data with four significant digits, for a node's file."""
        given = asdict(self)
        for key in ("phases", "facts"):
            given[key] = {name: _short(value) for name, value in given[key].items()}
        return {key: _short(value) if isinstance(value, float) else value for key, value in given.items()}

    @classmethod
    def of(cls, given: object) -> StepTiming | None:
        """Return the pace in plain data; None if that is not one."""
        if not isinstance(given, dict) or not all(name in given for name in NUMBERS[:3]):
            return None
        kept = {one.name: given[one.name] for one in fields(cls) if one.name in given}
        tables = [kept.get(name, {}) for name in ("phases", "facts")]
        if not all(isinstance(one, dict) for one in tables) or not isinstance(kept.get("node", ""), str):
            return None
        if kept.get("working_seconds", 0.0) is None:
            del kept["working_seconds"]
        numbers = [kept.get(name, 0) for name in NUMBERS] + [each for one in tables for each in one.values()]
        return cls(**kept) if all(map(_is_number, numbers)) else None


NUMBERS = ("rank", "seconds", "own_seconds", "working_seconds", "noise", "working_noise", "steps", "last")


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15


@dataclass(frozen=True)
class StepTable:
    """The same steps of several ranks: arrays of rank by step, in seconds."""

    ranks: Sequence[int]
    step: Integers
    """Number of each column's step."""
    seconds: Floats
    phases: Mapping[str, Floats] = field(default_factory=dict)
    """Seconds of each phase; 0 in a step that did not have it."""
    nodes: Sequence[str] = ()
    """The node of each rank; empty if unknown."""
    facts: Sequence[Mapping[str, float]] = ()
    """What else is known of each rank; empty if nothing."""
    weight: float = 1.0
    """Steps of each column, which then has their means."""

    def part(self, chosen: slice) -> StepTable:
        """Return some of its steps."""
        phases = {name: each[:, chosen] for name, each in self.phases.items()}
        return replace(self, step=self.step[chosen], seconds=self.seconds[:, chosen], phases=phases)

    def spent(self, *names: str) -> Floats:
        """Return the seconds of some phases together."""
        return sum((self.phases[name] for name in names if name in self.phases), np.zeros_like(self.seconds))

    @property
    def talks(self) -> list[str]:
        """The phases in which ranks talk to each other."""
        return [name for name in self.phases if is_talk(name)]

    @property
    def own(self) -> Floats:
        """The seconds in which a rank does not wait for others: neither planned extra work nor meetings."""
        return np.asarray(self.seconds - self.spent(*{*MEETING, *NOW_AND_THEN, *self.talks}))

    @property
    def working(self) -> Floats | None:
        """The seconds without communication and planned extra work; None if no communication was measured."""
        return np.asarray(self.seconds - self.spent(*NOW_AND_THEN, *self.talks)) if self.talks else None


def calm(values: Floats) -> Floats:
    """Return the low quantile of each row that represents it."""
    return np.asarray(np.sort(values, axis=1)[:, int(CALM * (values.shape[1] - 1))])


def _error(values: Floats) -> Floats:
    """Return the standard error of each row's low quantile, also where neighbouring steps take equally long.

    A rank may have more work than others for some dozen steps, as experts do: then the parts of a window differ by more
    than their single steps let expect.
    """
    if len(values) >= FEWEST_RANKS:  # what lengthens a step of all ranks tells nothing about one of them
        values = values - np.median(values, axis=0)
    count = values.shape[1]
    ordered = np.sort(values, axis=1)
    width = ordered[:, int(0.84 * (count - 1))] - ordered[:, int(0.16 * (count - 1))]
    error = ERROR * width / 2 / np.sqrt(count)
    if count >= PARTS * FEWEST_IN_PART:
        parts = np.stack([medians(part) for part in np.array_split(values, PARTS, axis=1)])
        error = np.maximum(error, parts.std(axis=0, ddof=1) / np.sqrt(PARTS))
    return np.asarray(error)


def _usual(phase: str, values: Floats) -> Floats:
    """Return the seconds of a phase that represent each rank; of one in which ranks wait, its median.

    A partner of the late rank does not wait at the next meeting, so a low quantile of that says nothing.
    """
    return medians(values) if phase in MEETING or is_talk(phase) else calm(values)


def _whole(table: StepTable) -> dict[str, Floats]:
    """Return the phases with all time that is in none of them as "other"; nothing without phases."""
    phases = dict(table.phases)
    if phases:
        rest = np.maximum(0.0, table.seconds - table.spent(*phases))
        phases["other"] = phases.get("other", 0.0) + rest
    return phases


def paces(table: StepTable) -> list[StepTiming]:
    """Return the pace of each rank of a table."""
    count = table.seconds.shape[1]
    if not count:
        return []
    own, working = table.own, table.working
    whole, mine = calm(table.seconds), calm(own)
    noise, working_noise = (_error(each) if each is not None else np.zeros(len(own)) for each in (own, working))
    parts = {name: _usual(name, each) for name, each in _whole(table).items() if name not in NOW_AND_THEN}
    longest = sorted(parts, key=lambda name: -float(parts[name].max()))[:MOST_PHASES]
    worked = calm(working) if working is not None else None
    return [
        StepTiming(
            *(int(rank), float(whole[at]), float(mine[at])),
            None if worked is None else float(worked[at]),
            {name: float(parts[name][at]) for name in longest},
            float(noise[at]),
            float(working_noise[at]),
            *(count, int(table.step[-1])),
            table.nodes[at] if table.nodes else "",
            table.facts[at] if table.facts else {},
        )
        for at, rank in enumerate(table.ranks)
    ]
