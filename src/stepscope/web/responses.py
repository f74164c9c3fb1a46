"""Types of all responses.

The OpenAPI description and the types of the page (`web/src/contract.ts`) are generated from them, and tests check real
responses against them. Times are Unix seconds, durations are seconds; a number that is not finite is null.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, field

from stepscope.core.strict_json import null, strict

CURVES_TYPE = "application/vnd.stepscope.curves"
"""Media type of binary curves."""


def encoded(value: Any) -> bytes:
    """Return plain data as JSON: null for numbers that are not finite, text for types that JSON lacks."""
    return msgspec.json.encode(strict(value, null), enc_hook=str)


class Response(Struct, kw_only=True, forbid_unknown_fields=True):
    """A JSON object."""


class ErrorText(Response, kw_only=True):
    """An error: its id is also in the server's log."""

    id: str
    text: str


class ErrorResponse(Response, kw_only=True):
    """Body of every response that is not a success."""

    error: ErrorText


class Health(Response, kw_only=True):
    """The server is alive."""

    ok: bool


class Accepted(Response, kw_only=True):
    """A request was accepted."""

    ok: bool
    text: str


class Capabilities(Response, kw_only=True):
    """Parts that the page shows."""

    alerts: bool
    actions: bool
    diagnosis: bool


class Limits(Response, kw_only=True):
    """Limits of one request."""

    names: int
    runs: int
    points: int
    rows: int


class Server(Response, kw_only=True):
    """The server and its limits."""

    version: str
    root: str
    heading: str
    refresh: float
    """Seconds between two live polls."""
    capabilities: Capabilities
    limits: Limits
    now: float


class Headline(Response, kw_only=True):
    """The metric that a run is judged by first."""

    name: str
    last: float | None
    best: float | None


class LastAlert(Response, kw_only=True):
    """The last alert of a run in short."""

    rule: str
    severity: str
    state: str
    text: str


class Cost(Response, kw_only=True):
    """An amount of money."""

    amount: float
    currency: str


class Card(Response, kw_only=True):
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


class Row(Response, kw_only=True):
    """One run of the list."""

    key: str
    id: str
    name: str
    project: str
    state: str
    cause: str
    created: float
    duration: float | None
    step: int | None
    heard: float | None
    """Time of the last sign of life."""
    attempts: int
    card: Card | None


class RunList(Response, kw_only=True):
    """The list of runs, or the rows that changed."""

    version: int
    complete: bool
    reading: int
    """Runs whose card is still being read."""
    total: int
    rows: list[Row]
    gone: list[str]
    """Keys of removed runs."""


class Status(Response, kw_only=True):
    """The current state of a run."""

    state: str
    cause: str
    step: int | None
    heard: float | None
    duration: float | None
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


class Rank(Response, kw_only=True):
    """One rank of one attempt."""

    attempt: int
    rank: int
    node: str
    state: str
    cause: str
    inferred: bool
    pid: int
    step: int | None
    rows: int
    lost: int
    refused: int
    seconds: float | None


class KeyNumber(Response, kw_only=True):
    """A number at the top of a run's page."""

    key: str
    label: str
    value: float | None
    unit: str
    text: str


class PhaseShare(Response, kw_only=True):
    """A phase and its share of the step time."""

    phase: str
    seconds: float | None
    share: float | None
    mean: float | None


class Phase(PhaseShare, kw_only=True):
    """A phase with its percentiles, which long runs do not have."""

    p50: float | None
    p95: float | None
    max: float | None
    steps: int


class StepFigures(Response, kw_only=True):
    """Seconds of a step; long runs have no percentiles."""

    mean: float | None
    p50: float | None
    p95: float | None
    max: float | None


class StepTime(Response, kw_only=True):
    """How a step divides into phases."""

    steps: int
    seconds: float | None
    window: tuple[int, int] | None
    step: StepFigures
    phases: list[Phase]


class Throughput(Response, kw_only=True):
    """Speed of one attempt."""

    attempt: int
    ranks: int
    steps_per_second: float | None
    samples_per_second: float | None


class Happening(Response, kw_only=True):
    """An event in one line."""

    time: float
    step: int | None
    kind: str
    text: str


class RankHappening(Happening, kw_only=True):
    """An event of one rank in one line."""

    rank: int | None


class LastStep(Response, kw_only=True):
    """One of the last steps before the end."""

    step: int
    seconds: float | None
    phases: dict[str, float | None]
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None


class End(Response, kw_only=True):
    """How a run ended."""

    attempt: int
    rank: int
    traceback: list[str]
    events: list[RankHappening]
    steps: list[LastStep]


class Identity(Response, kw_only=True):
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


class Head(Response, kw_only=True):
    """The first screen of a run."""

    run: Identity
    status: Status
    card: Card
    ranks: list[Rank]
    numbers: list[KeyNumber]
    time: StepTime | None
    throughput: list[Throughput]
    important: list[str]
    changes: list[Happening]
    end: End | None
    points: int
    problems: list[str]
    definitions: dict[str, str]


class Metric(Response, kw_only=True):
    """One metric of a run; its source is training, phase, machine or own."""

    name: str
    unit: str
    kind: str
    help: str
    group: str
    source: str
    count: int
    important: bool


class Metrics(Response, kw_only=True):
    """The metrics of a run."""

    ranks: list[int]
    attempts: list[int]
    metrics: list[Metric]


class Hello(Response, kw_only=True):
    """Where a page starts to follow a run."""

    cursor: str
    curves: list[tuple[int, str, int, int]]
    """Number, name, rank and attempt of each curve."""
    status: Status


class RunEvent(Response, kw_only=True):
    """An event."""

    time: float
    kind: str
    rank: int | None
    attempt: int | None
    step: int | None
    text: str
    data: dict[str, Any]


class Events(Response, kw_only=True):
    """The newest events of a run."""

    total: int
    events: list[RunEvent]


class Histogram(Response, kw_only=True):
    """The distribution of a value at one step."""

    step: int | None
    time: float
    rank: int | None
    attempt: int | None
    edges: list[float]
    counts: list[float]


class Histograms(Response, kw_only=True):
    """The histograms of one name."""

    names: list[str]
    rows: list[Histogram]


class MachineNode(Response, kw_only=True):
    """One machine."""

    node: str
    attempt: int
    devices: dict[str, str]
    absent: dict[str, str]
    """Reasons for missing metrics."""


class Gpu(Response, kw_only=True):
    """A GPU with its last values."""

    index: int
    name: str
    node: str
    metrics: dict[str, float | None]


class Process(Response, kw_only=True):
    """The process of a rank with its last values."""

    rank: int
    pid: int
    state: str
    node: str
    step: int | None
    metrics: dict[str, float | None]


class MachineChart(Response, kw_only=True):
    """Metrics that are drawn in one chart."""

    group: str
    title: str
    unit: str
    names: list[str]
    limit: str | None
    """Metric that bounds the others."""


class Machine(Response, kw_only=True):
    """The machines of a run."""

    nodes: list[MachineNode]
    gpus: list[Gpu]
    processes: list[Process]
    groups: list[MachineChart]


class ComparedRun(Response, kw_only=True):
    """One run of a comparison."""

    key: str
    id: str
    name: str
    project: str
    state: str
    cause: str
    created: float
    step: int | None
    duration: float | None


class Setting(Response, kw_only=True):
    """A setting and its value in each run."""

    key: str
    values: list[Any]
    same: bool


class ComparedValue(Response, kw_only=True):
    """The value of a quantity in one run."""

    value: float | None


class Difference(Response, kw_only=True):
    """The difference of a quantity to the first run."""

    ratio: float | None
    low: float | None
    high: float | None
    confidence: float | None
    verdict: str
    text: str


class Quantity(Response, kw_only=True):
    """A quantity of several runs."""

    name: str
    unit: str
    definition: str
    better: str | None
    """Whether lower or higher is better."""
    values: list[ComparedValue | None]
    differences: list[Difference | None]


class Comparison(Response, kw_only=True):
    """Runs compared with the first of them."""

    runs: list[ComparedRun]
    config: list[Setting]
    numbers: list[Quantity]
    phases: list[list[PhaseShare]]
    notes: list[str]


class Transition(Response, kw_only=True):
    """One change of an alert."""

    time: float
    state: str
    severity: str
    text: str


class Alert(Response, kw_only=True):
    """An alert: pending, firing, acknowledged, silenced or resolved."""

    alert: str
    rule: str
    state: str
    severity: str
    since: float
    until: float | None
    text: str
    remedy: str
    labels: dict[str, Any]
    evidence: dict[str, Any]
    rank: int | None
    step: int | None
    key: str
    count: int
    transitions: list[Transition]


class Delivery(Response, kw_only=True):
    """Notifications of one channel: sent, waiting, failing or dead."""

    channel: str
    node: str
    state: str
    sent: int
    waiting: int
    dead: int
    time: float | None
    why: str


class Alerts(Response, kw_only=True):
    """The alerts of a run, active alerts first."""

    total: int
    alerts: list[Alert]
    deliveries: list[Delivery]


class Recipe(Response, kw_only=True):
    """Code that reads the same numbers."""

    python: str
    sql: str
    shell: str


class Finding(Response, kw_only=True):
    """A finding of the analysis with its evidence and remedy."""

    kind: str
    text: str
    severity: str
    remedy: str
    evidence: dict[str, Any]
    gain_ratio: float | None
    confidence: float | None
    cost_seconds: float | None
    expected_gain: str
    rank: int | None


class DiagnosedRun(Response, kw_only=True):
    """The run of a diagnosis."""

    id: str
    name: str
    project: str
    path: str
    state: str


class Moved(Response, kw_only=True):
    """A metric that changed together with another one."""

    name: str
    before: float | None
    after: float | None
    text: str
    explains: float | None = None
    spreads: float | None = None


class Change(Response, kw_only=True):
    """A lasting change of a metric."""

    metric: str
    step: int
    until: int
    time: float
    before: float | None
    after: float | None
    cost_seconds: float | None
    text: str
    moved: list[Moved]
    events: list[Happening]


class SlowStep(Response, kw_only=True):
    """A step that took much longer than usual."""

    step: int
    time: float
    seconds: float
    usual_seconds: float
    phases: dict[str, float]
    io_waiting_ratio: float | None
    events: list[Happening]
    text: str


class MissingSignal(Response, kw_only=True):
    """A signal that the diagnosis lacks."""

    signal: str
    why: str
    remedy: str


class Diagnosis(Response, kw_only=True):
    """Why a run is slow or fails; `primary` is the kind of the most important finding, or none."""

    run: DiagnosedRun
    primary: str
    summary: str
    findings: list[Finding]
    changes: list[Change]
    slow_steps: list[SlowStep]
    missing: list[MissingSignal]
    notes: list[str]
    steps: int
    seconds: float
    devices: int


class LedgerAttempt(Response, kw_only=True):
    """Seconds of one attempt by class."""

    attempt: int
    began: float
    seconds: float
    ranks: int
    state: str
    classes: dict[str, float]


class Import(Response, kw_only=True):
    """The log that a run was imported from."""

    format: str
    timed: bool


class Money(Response, kw_only=True):
    """Cost of a run by class."""

    currency: str
    per_device_hour: float
    source: str
    total: float
    wasted: float
    classes: dict[str, float]


class Energy(Response, kw_only=True):
    """Energy of a run by class."""

    joules: dict[str, float]
    total_joules: float
    kwh: float
    co2_kg: float | None
    grams_per_kwh: float | None
    region: str
    sources: list[str]
    covered_ratio: float


class Wasted(Response, kw_only=True):
    """A class of time that a better run would have less of."""

    class_: str = field(name="class")
    seconds: float
    share: float | None
    remedy: str


class Forecast(Response, kw_only=True):
    """Estimated end of a running run."""

    seconds: float
    low: float
    high: float | None
    text: str
    steps: int
    money: float | None


class Ledger(Response, kw_only=True):
    """Time, money and energy of a run, each by class."""

    wall_seconds: float
    paid_seconds: float
    goodput_ratio: float | None
    ranks: int
    steps: int
    seconds: dict[str, float]
    attempts: list[LedgerAttempt]
    imported: Import | None
    devices: int
    device: str
    money: Money | None
    energy: Energy | None
    wasted: list[Wasted]
    forecast: Forecast | None
    advice: list[Finding]
    classes: dict[str, str]
    """What each class contains."""
    definitions: dict[str, str]
