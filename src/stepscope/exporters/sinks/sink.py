"""What every sink can do, and what it is given: rows of the run, news about it, and the ways in which a call ends.

A call never waits longer than `CALL_SECONDS`. It returns when the sink has confirmed, or raises one of three errors:
`SinkDownError` (try again later; `SinkSlowError`: with less), `SinkRefusesError` (this data will never be taken),
`SinkDeniesError` (nothing of ours is taken until a setting is changed, here or there).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from stepscope.core.ring import NO_STEP
from stepscope.store.points import row_starts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepscope.exporters.sinks.address import SinkAddress
    from stepscope.store.points import Points

CALL_SECONDS = 30.0
"""The longest that one call of a sink may take."""


class SinkError(Exception):
    """A sink did not do what it was asked. The text names the cause, and holds no secret."""


class SinkDownError(SinkError):
    """The sink cannot answer now: the same call is made again later."""

    def __init__(self, why: str, retry_after: float | None = None) -> None:
        """`retry_after` is the number of seconds that the sink asked for."""
        super().__init__(why)
        self.retry_after = retry_after


class SinkSlowError(SinkDownError):
    """The sink did not answer in time. It may be gone, or too slow for this much at once."""


class SinkRefusesError(SinkError):
    """The sink will never take this data. The sender finds the row at fault, and sets it aside."""


class SinkDeniesError(SinkError):
    """The sink takes nothing from us now: a wrong token, a missing project. Rows wait until that has changed."""


class SentRow(NamedTuple):
    """One recorded row: what one `log` call, one step or one sample of the machine wrote."""

    rank: int
    """A rank, or a negative number for the watcher of a node."""
    attempt: int
    seq: int
    step: int | None
    time: float
    """Seconds since 1970 UTC."""
    values: dict[str, float]

    @property
    def id(self) -> str:
        """Identifies the row within its run."""
        return f"{self.rank}.{self.attempt}.{self.seq}"


@dataclass(frozen=True)
class SinkBatch:
    """Points to send: whole rows, ordered by rank, attempt and sequence; only metrics that the sink wants."""

    points: Points

    def __len__(self) -> int:
        return len(self.points)

    def starts(self) -> list[int]:
        """Return where each row starts, and the end."""
        return [*row_starts(self.points).tolist(), len(self.points)]

    def rows(self) -> Iterator[SentRow]:
        """Yield the points as rows."""
        points, names = self.points, self.points.names
        codes, values = points.name.tolist(), points.value.tolist()
        for first, end in itertools.pairwise(self.starts()):
            step = int(points.step[first])
            yield SentRow(
                int(points.rank[first]),
                int(points.attempt[first]),
                int(points.seq[first]),
                None if step == NO_STEP else step,
                int(points.time[first]) / 1e6,
                {names[code]: value for code, value in zip(codes[first:end], values[first:end], strict=True)},
            )

    def halves(self, *, divides_rows: bool = False) -> tuple[SinkBatch, SinkBatch] | None:
        """Return the first and second half of the rows; of a single row, the halves of its points or None."""
        starts = self.starts()
        if len(starts) <= 2 and (len(self) <= 1 or not divides_rows):
            return None
        middle = starts[len(starts) // 2] if len(starts) > 2 else len(self) // 2
        return self.part(0, middle), self.part(middle, len(self))

    def part(self, first: int, end: int) -> SinkBatch:
        """Return the points from `first` to before `end`."""
        return replace(self, points=self.points.select(slice(first, end)))


class Receipt(NamedTuple):
    """What became of a batch that a sink has taken."""

    refused: int = 0
    """Points that the sink left out for good, without saying which."""
    why: str = ""
    """Its reason, in the sink's words, for the count above."""
    merged: int = 0
    """Points that the sink cannot tell from others of the batch, such as two values of a series in one millisecond."""


@dataclass(frozen=True)
class RunFacts:
    """What does not change about a run: the sink needs it to create its own."""

    id: str
    project: str
    name: str
    created: float
    """Seconds since 1970 UTC."""
    path: str
    """Its folder."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Nested; secrets are redacted. Values are plain data."""
    tags: tuple[str, ...] = ()
    notes: str = ""
    group: str = ""
    host: str = ""
    commit: str = ""
    """Git commit; empty if unknown."""
    page: str = ""
    """Address of the run's page, for a link back; empty if unknown."""
    node: str = ""
    """The node whose rows are sent."""
    is_first: bool = True
    """Whether rank 0 is on this node; of several nodes one is the first."""

    @property
    def identity(self) -> str:
        """Names this run and no other, also after its folder was deleted and its id was used again."""
        return f"{self.project}/{self.id}@{self.created:.6f}"


class AlertChange(NamedTuple):
    """One change of an alert of the run."""

    id: str
    rule: str
    severity: str
    """info, warning or critical."""
    state: str
    """firing or resolved."""
    text: str
    time: float
    """Seconds since 1970 UTC."""
    step: int | None = None


@dataclass(frozen=True)
class RunNews:
    """What is new about a run. Saying it twice must change nothing."""

    state: str = "running"
    """running, finished, failed, killed, oom-killed, preempted, interrupted or lost."""
    cause: str = ""
    ended: float | None = None
    """Seconds since 1970 UTC."""
    verdict: str = ""
    """What the diagnosis says, in one or two sentences; empty if it was not made."""
    alerts: Sequence[AlertChange] = ()
    """Changes that the sink was not reported yet, oldest first."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The configuration as it is now: a script may have completed it."""
    tags: tuple[str, ...] = ()
    notes: str = ""
    progress: float | None = None
    """Share of the planned steps that are done, 0 to 1; None if unknown."""
    remaining: float | None = None
    """Estimated seconds until the end; None if unknown."""
    latest: Mapping[str, float] = field(default_factory=dict)
    """The last value of each metric that the sink wants, for sinks that show only those."""

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.state != "running"


class Sink:
    """Another tool that gets a copy of a run. One object serves one run, from one thread at a time."""

    kind: ClassVar[str] = ""
    """The first part of its address, as in `mlflow`."""
    most_points: ClassVar[int] = 1000
    """Points in one batch, approximately: a row is never divided."""
    is_keyed: ClassVar[bool] = False
    """Whether a row that is sent twice is stored once."""
    is_ordered: ClassVar[bool] = False
    """Whether the sink refuses a row that is older than one it has."""
    divides_rows: ClassVar[bool] = True
    """Whether the values of a row can be sent apart, so that one that is refused does not cost the others."""
    takes_rows: ClassVar[bool] = True
    """Whether `send` is used; otherwise only `report` is."""
    takes_all_nodes: ClassVar[bool] = True
    """Whether every node of a run has its own connection; otherwise only the node of rank 0 has one."""
    interval: ClassVar[float] = 2.0
    """Seconds between two batches while the sink keeps up, unless the configuration says otherwise."""
    report_every: ClassVar[float] = 10.0
    """Seconds between two calls of `report` while the run goes on."""

    def __init__(self, address: SinkAddress, environ: Mapping[str, str]) -> None:
        """Connect to nothing yet. UsageError if the address cannot be one of this sink."""
        self.address, self.environ = address, environ

    def probe(self) -> str:
        """Return what this sink is, in a few words, if it would take rows; raise SinkError if not. Creates nothing."""
        raise NotImplementedError

    def open(self, run: RunFacts, known: Mapping[str, str]) -> dict[str, str]:
        """Create the run in the sink, or find it again; return facts to be kept, such as its id there.

        `known` is what the last call returned, {} before the first. It may be killed at any point and called again:
        there is still one run. The key `link` is the web address of the run in the sink, for people.
        """
        raise NotImplementedError

    def send(self, batch: SinkBatch) -> Receipt:
        """Send points; return when the sink has them."""
        raise NotImplementedError

    def report(self, news: RunNews) -> None:
        """Bring the sink's view of the run up to date: state, configuration, alerts, verdict."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of connections and processes; may take `CALL_SECONDS`, and raises nothing but SinkError."""


def written_name(prefix: str, name: str, rank: int) -> str:
    """Return the name of a metric in a sink without labels: rank 0 and its machine have the plain name."""
    place = f"rank{rank}/" if rank > 0 else f"node{-1 - rank}/" if rank < -1 else ""
    return f"{prefix}{place}{name}"
