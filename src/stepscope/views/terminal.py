"""What a terminal shows of a run or a machine at one time, as plain data: no color, no size, no file."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from stepscope.analysis.compare.quantity import is_score
from stepscope.core.vocabulary import MEETING, canonical, phase_place
from stepscope.views.terminal_console import TerminalConsole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepscope.views.terminal_history import History

TRENDS = 240
"""Number of recent machine samples kept."""
RECENT = 64
"""Number of recent steps kept for each rank."""


@dataclass
class TerminalCurve:
    """One metric with its history."""

    name: str
    unit: str
    history: History

    @property
    def best(self) -> float | None:
        """The best value so far of a loss or a score; None for other metrics."""
        known = canonical(self.name)
        if is_score(known):
            return self.history.highest
        return self.history.lowest if "loss" in known or "perplexity" in known else None

    @property
    def spans_decades(self) -> bool:
        """Whether it is drawn on a logarithmic scale if it spans decades."""
        return any(word in self.name for word in ("loss", "grad", "perplexity", "norm"))


@dataclass(frozen=True)
class TerminalPhase:
    """A phase of the step, over the recent steps of all ranks."""

    name: str
    seconds: float
    share: float


@dataclass
class TerminalNode:
    """One machine: its newest samples and their recent history."""

    name: str = ""
    values: dict[str, float] = field(default_factory=dict)
    trends: dict[str, deque[float]] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)

    def take(self, values: Mapping[str, float]) -> None:
        """Add samples, each newer than those before."""
        self.values.update(values)
        for name, value in values.items():
            self.trends.setdefault(name, deque(maxlen=TRENDS)).append(value)

    def reset(self) -> None:
        """Clear the history; the newest samples stay."""
        for trend in self.trends.values():
            trend.clear()

    def gpus(self, only: Sequence[int] | None = None) -> dict[int, dict[str, float]]:
        """Return the newest samples of each GPU, by its index."""
        found: dict[int, dict[str, float]] = {}
        for index, metric, value in self._numbered("gpu"):
            if only is None or index in only:
                found.setdefault(index, {})[metric] = value
        return dict(sorted(found.items()))

    def cores(self) -> list[float]:
        """Return the use of each processor, 0 to 1, in order."""
        found = [(index, value) for index, metric, value in self._numbered("cpu") if metric == "usage_ratio"]
        return [value for _, value in sorted(found)]

    def _numbered(self, group: str) -> Iterator[tuple[int, str, float]]:
        """Yield index, metric and value of the samples such as gpu/0/power_watts."""
        for name, value in self.values.items():
            first, _, rest = name.partition("/")
            index, _, metric = rest.partition("/")
            if first == group and metric and index.isdecimal():
                yield int(index), metric, value


@dataclass
class TerminalRank:
    """One process of the training."""

    rank: int
    state: str = ""
    node: str = ""
    pid: int = 0
    step: int | None = None
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Seconds of its recent steps."""
    phases: dict[str, deque[float]] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    """Newest samples of its process: memory_bytes, cpu_ratio and so on."""
    blame: str = ""
    """What it did if it is the cause of a hang, in words."""

    @property
    def step_seconds(self) -> float | None:
        """Mean of its recent steps."""
        return sum(self.steps) / len(self.steps) if self.steps else None

    @property
    def own_seconds(self) -> float | None:
        """Seconds of a recent step without phases in which it may wait for others; None if not measured."""
        waited = [median(self.phases[name]) for name in MEETING if self.phases.get(name)]
        return max(0.0, median(self.steps) - sum(waited)) if waited and self.steps else None


@dataclass
class TerminalScene:
    """Everything that a screen shows."""

    title: str
    is_run: bool
    now: float = 0.0
    """Seconds since 1970 UTC."""
    project: str = ""
    id: str = ""
    status: dict[str, Any] = field(default_factory=dict)
    """As `run_card.status` returns it; empty without a run."""
    samples_per_second: float | None = None
    loading: bool = False
    note: str = ""
    """One line for the user, such as why nothing is shown yet."""
    shown: list[str] = field(default_factory=list)
    """Metrics with a graph, in order."""
    curves: dict[str, TerminalCurve] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    """The newest value of every metric of the training."""
    units: dict[str, str] = field(default_factory=dict)
    nodes: dict[int, TerminalNode] = field(default_factory=dict)
    ranks: dict[int, TerminalRank] = field(default_factory=dict)
    alerts: list[dict[str, Any]] = field(default_factory=list)
    """Rows of `alerts_of`, the newest first."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """The newest last; each has time, kind, step, text."""
    sinks: list[dict[str, Any]] = field(default_factory=list)
    """Rows of `sink_rows`."""
    diagnosis: dict[str, Any] | None = None
    console: TerminalConsole = field(default_factory=TerminalConsole)

    @property
    def moment(self) -> float:
        """Now; for an ended run, the time of its last heartbeat."""
        heard = self.status.get("heard")
        return self.now if heard is None or self.state == "running" else float(heard)

    @property
    def state(self) -> str:
        """The state of the run; empty without a run."""
        return str(self.status.get("state", ""))

    def phases(self) -> list[TerminalPhase]:
        """Return the phases of the step in the order of their vocabulary, "other" last."""
        sums: dict[str, float] = {}
        number = 0
        for rank in self.ranks.values():
            for name, recent in rank.phases.items():
                sums[name] = sums.get(name, 0.0) + sum(recent)
            number += max(map(len, rank.phases.values()), default=0)
        total = sum(sums.values())
        if total <= 0 or not number:
            return []
        found = [TerminalPhase(name, seconds / number, seconds / total) for name, seconds in sums.items()]
        return sorted(found, key=lambda phase: (phase_place(phase.name), phase.name))

    def step_seconds(self) -> float | None:
        """Return the mean of the recent steps over all ranks."""
        known = [seconds for rank in self.ranks.values() if (seconds := rank.step_seconds) is not None]
        return sum(known) / len(known) if known else None

    def firing(self) -> list[dict[str, Any]]:
        """Return the active alerts, the most severe first."""
        order = {"critical": 0, "warning": 1, "info": 2}
        active = [row for row in self.alerts if row["state"] in {"firing", "acknowledged"}]
        return sorted(active, key=lambda row: (row["state"] != "firing", order.get(row["severity"], 3), -row["since"]))
