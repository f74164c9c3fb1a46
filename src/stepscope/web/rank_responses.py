"""Types of the responses about ranks; see `responses`."""

from __future__ import annotations

from stepscope.web.json_object import Response


class ShownRank(Response):
    """One rank; figures are means per step."""

    rank: int
    node: str
    host: str
    """The node's name for people."""
    host_note: str
    """How the node came or went, and by how much its clock is wrong; "" for most nodes."""
    state: str
    stall: str
    """"", stalled or hung."""
    cause: str
    is_well: bool
    """Whether it runs, or ended as it should."""
    is_late: bool
    blame: str
    """What it did if it is the cause of a hang or of the end, as in "failed first"; else empty."""
    is_notable: bool
    """Whether it needs attention: it is late, the cause of a hang or a crash, or in another state than most."""
    step: int | None
    behind_steps: int | None
    behind_seconds: float | None
    last_phase: str
    """The phase in which an event last found it."""
    slowest_phase: str
    """The phase in which it is the most beyond the median rank."""
    slowest_seconds: float | None
    step_seconds: float | None
    own_seconds: float | None
    """Step time without the phases in which it may wait for others."""
    late_seconds: float | None
    """Own time beyond that of the median rank."""
    phases: dict[str, float]
    gpu: int | None
    gpu_name: str
    temperature: float | None
    throttled: list[str]
    coordinates: dict[str, int]


class HangFacts(Response):
    """Why the ranks stand still."""

    kind: str
    ranks: list[int]
    """The cause."""
    waiting: list[int]
    """The ranks that wait for them."""
    text: str
    evidence: dict[str, list[str]]
    """Sentences by source: steps, stacks, flight_recorder, ras."""
    remedy: str
    confidence: float
    """From 0 to 1."""


class Ranks(Response):
    """The ranks of the newest attempt, the worst first."""

    attempt: int
    nodes: int
    first_step: int | None
    last_step: int | None
    usual_seconds: float | None
    """Step time of the median rank."""
    usual_phases: dict[str, float]
    summary: str
    hang: HangFacts | None
    """None while the ranks move."""
    clocks: str
    """By how much the clocks of the nodes differ, in words; "" if they hardly do."""
    definition: str
    late: list[int]
    dimensions: list[str]
    """What ranks can be grouped by: node, and coordinates."""
    rows: list[ShownRank]


class RankHeat(Response):
    """A quantity by rank and bucket of steps."""

    what: str
    unit: str
    is_difference: bool
    """Whether the values are seconds beyond the median rank."""
    ranks: list[int]
    edges: list[int]
    """First step of each bucket, and the step after the last."""
    first_step: int | None
    last_step: int | None
    every_step: bool
    """Whether every step was read; otherwise blocks of steps, so that a bucket may hold steps of its neighbours."""
    usual: list[float | None]
    """Of each bucket, the step time of the median rank if values are differences, else the median of the values."""
    values: list[list[float | None]]


class ComparedPhase(Response):
    """A phase of one rank beside the median over all ranks."""

    phase: str
    seconds: float | None
    usual_seconds: float | None
    may_wait: bool
    """Whether ranks may wait for each other in it."""


class RankStep(Response):
    """A step of one rank, or the mean of several steps."""

    step: int
    last_step: int
    rank: int | None
    ranks: int
    """Number of ranks that recorded it."""
    node: str
    host: str
    step_seconds: float | None
    late_seconds: float | None
    usual_seconds: float | None
    phases: list[ComparedPhase]
