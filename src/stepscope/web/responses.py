"""Types of all responses.

The OpenAPI description and the types of the page (`web/src/contract.ts`) are generated from them, and tests check real
responses against them. Times are Unix seconds, durations are seconds; a number that is not finite is null.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stepscope.core.strict_json import null, strict
from stepscope.web.console_responses import FirstErrorRow  # noqa: TC001 - msgspec reads it
from stepscope.web.json_object import Response

CURVES_TYPE = "application/vnd.stepscope.curves"
"""Media type of binary curves."""


def encoded(value: Any) -> bytes:
    """Return plain data as JSON: null for numbers that are not finite, text for types that JSON lacks."""
    return msgspec.json.encode(strict(value, null), enc_hook=str)


class ErrorText(Response):
    """An error: its id is also in the server's log."""

    id: str
    text: str


class ErrorResponse(Response):
    """Body of every response that is not a success."""

    error: ErrorText


class Health(Response):
    """The server is alive."""

    ok: bool


class Accepted(Health):
    """A request was accepted."""

    text: str


class Capabilities(Response):
    """Parts that the page shows."""

    alerts: bool
    actions: bool
    diagnosis: bool


class RequestLimits(Response):
    """Limits of one request."""

    names: int
    runs: int
    points: int
    rows: int


class ServerInfo(Response):
    """The server and its limits."""

    version: str
    root: str
    heading: str
    refresh: float
    """Seconds between two live polls."""
    capabilities: Capabilities
    limits: RequestLimits
    now: float


class Headline(Response):
    """The metric that a run is judged by first."""

    name: str
    last: float | None
    best: float | None


class LastAlert(Response):
    """The last alert of a run in short."""

    rule: str
    severity: str
    state: str
    text: str


class Cost(Response):
    """An amount of money."""

    amount: float
    currency: str


class RunCard(Response):
    """The part of a row that is computed from a run's points."""

    rate: float | None
    """Steps per second."""
    recent_rate: float | None
    samples_per_second: float | None
    loss: Headline | None
    spark: list[float | None]
    gpu: float | None
    """Mean utilization of the GPUs, 0 to 1."""
    step_seconds: float | None
    epoch: float | None
    total_steps: int | None
    left: float | None
    """Estimated seconds until the end."""
    cost: Cost | None
    alert: LastAlert | None
    problems: int


class RunState(Response):
    """The state of a run."""

    state: str
    cause: str
    step: int | None
    duration: float | None


class ComparedRun(RunState):
    """One run of a comparison."""

    key: str
    id: str
    name: str
    project: str
    created: float


class RunRow(ComparedRun):
    """One run of the list."""

    heard: float | None
    """Time of the last sign of life."""
    attempts: int
    card: RunCard | None


class RunRows(Response):
    """The list of runs, or the rows that changed."""

    version: int
    complete: bool
    reading: int
    """Runs whose card is still being read."""
    total: int
    rows: list[RunRow]
    gone: list[str]
    """Keys of removed runs."""


class RunStatus(RunState):
    """The current state of a live run."""

    heard: float | None
    now: float
    epoch: float | None
    rate: float | None
    total_steps: int | None
    progress: float | None
    left: float | None
    names: int
    events: int
    firing: int
    """Number of firing alerts."""
    worst: str | None
    """Highest severity of the firing alerts."""


class AttemptRank(Response):
    """One rank of one attempt."""

    attempt: int
    rank: int
    node: str
    state: str
    stall: str
    cause: str
    inferred: bool
    pid: int
    step: int | None
    rows: int
    lost: int
    refused: int
    seconds: float | None


class KeyNumber(Response):
    """A number at the top of a run's page."""

    key: str
    label: str
    value: float | None
    unit: str
    text: str


class PhaseShare(Response):
    """A phase and its share of the step time."""

    phase: str
    seconds: float | None
    share: float | None
    mean: float | None


class PhaseFigures(PhaseShare):
    """A phase with its percentiles, which long runs do not have."""

    p50: float | None
    p95: float | None
    max: float | None
    steps: int


class StepFigures(Response):
    """Seconds of a step; long runs have no percentiles."""

    mean: float | None
    p50: float | None
    p95: float | None
    max: float | None


class StepTime(Response):
    """How a step divides into phases."""

    steps: int
    seconds: float | None
    window: tuple[int, int] | None
    step: StepFigures
    phases: list[PhaseFigures]


class AttemptThroughput(Response):
    """Speed of one attempt."""

    attempt: int
    ranks: int
    steps_per_second: float | None
    samples_per_second: float | None


class Happening(Response):
    """An event in one line."""

    time: float
    step: int | None
    kind: str
    text: str


class RankHappening(Happening):
    """An event of one rank in one line."""

    rank: int | None


class LastStep(Response):
    """One of the last steps before the end."""

    step: int
    seconds: float | None
    phases: dict[str, float | None]
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None


class RunEnd(Response):
    """How a run ended."""

    attempt: int
    rank: int
    traceback: list[str]
    """The last lines of the rank, or its traceback."""
    first_error: FirstErrorRow | None
    events: list[RankHappening]
    steps: list[LastStep]


class RunIdentity(Response):
    """A run and its environment; the untyped fields are as the program or the machine gave them."""

    key: str
    id: str
    name: str
    project: str
    path: str
    created: float | None
    source: Any
    world_size: int | None
    host: Any
    platform: Any
    python: Any
    cpu: Any
    memory: Any
    container: Any
    git: Any
    cwd: Any
    command: Any
    config: Any
    labels: Any


class SinkRow(Response):
    """Another tool that gets a copy of the run, over all nodes."""

    key: str
    name: str
    kind: str
    address: str
    """Without secrets."""
    state: str
    """In words: keeping up, catching up, not answering, stopped, denied or done."""
    tone: str
    """How the state is shown: good, go, warn or bad."""
    why: str
    since: float | None
    time: float | None
    """When its sender wrote this."""
    nodes: int
    behind_rows: int
    behind_seconds: float
    sent_rows: int
    refused_rows: int
    link: str
    """Web address of the run in the sink; empty if there is none."""


class RunHead(Response):
    """The first screen of a run."""

    run: RunIdentity
    status: RunStatus
    card: RunCard
    ranks: list[AttemptRank]
    numbers: list[KeyNumber]
    time: StepTime | None
    throughput: list[AttemptThroughput]
    important: list[str]
    changes: list[Happening]
    sinks: list[SinkRow]
    end: RunEnd | None
    points: int
    problems: list[str]
    definitions: dict[str, str]


class MetricRow(Response):
    """One metric of a run; its source is training, phase, machine or own."""

    name: str
    unit: str
    kind: str
    help: str
    group: str
    source: str
    count: int
    important: bool


class Metrics(Response):
    """The metrics of a run."""

    ranks: list[int]
    attempts: list[int]
    metrics: list[MetricRow]


class Hello(Response):
    """Where a page starts to follow a run."""

    cursor: str
    curves: list[tuple[int, str, int, int]]
    """Number, name, rank and attempt of each curve."""
    status: RunStatus


class RunEvent(RankHappening):
    """An event with its data."""

    attempt: int | None
    data: dict[str, Any]


class Events(Response):
    """The newest events of a run."""

    total: int
    events: list[RunEvent]


class Histogram(Response):
    """The distribution of a value at one step."""

    step: int | None
    time: float
    rank: int | None
    attempt: int | None
    edges: list[float]
    counts: list[float]


class Histograms(Response):
    """The histograms of one name."""

    names: list[str]
    rows: list[Histogram]


class MachineNode(Response):
    """One machine."""

    node: str
    attempt: int
    devices: dict[str, str]
    absent: dict[str, str]
    """Reasons for missing metrics."""


class Gpu(Response):
    """A GPU with its last values."""

    index: int
    name: str
    node: str
    metrics: dict[str, float | None]


class RankProcess(Response):
    """The process of a rank with its last values."""

    rank: int
    pid: int
    state: str
    node: str
    step: int | None
    metrics: dict[str, float | None]


class MachineChart(Response):
    """Metrics that are drawn in one chart."""

    group: str
    title: str
    unit: str
    names: list[str]
    limit: str | None
    """Metric that bounds the others."""


class RunMachine(Response):
    """The machines of a run."""

    nodes: list[MachineNode]
    gpus: list[Gpu]
    processes: list[RankProcess]
    groups: list[MachineChart]
