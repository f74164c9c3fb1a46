"""Types of all responses; the OpenAPI description and the page's types are generated from them."""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec

from stepscope.core.strict_json import null, strict

CURVES_TYPE = "application/vnd.stepscope.curves"
"""Media type of binary curves."""


def encoded(value: Any) -> bytes:
    """Return plain data as JSON: null for numbers that are not finite, text for types that JSON lacks."""
    return msgspec.json.encode(strict(value, null), enc_hook=str)


class Health(TypedDict):
    """The server is alive."""

    ok: bool


class ErrorText(TypedDict):
    """What went wrong."""

    id: str
    text: str


class Error(TypedDict):
    """Every answer that is not one."""

    error: ErrorText


class Capabilities(TypedDict):
    """Which parts the page shows."""

    alerts: bool
    actions: bool
    diagnosis: bool


class Limits(TypedDict):
    """Bounds of one question."""

    names: int
    runs: int
    points: int
    rows: int


class Server(TypedDict):
    """What the page must know of the server."""

    version: str
    root: str
    heading: str
    refresh: float
    capabilities: Capabilities
    limits: Limits
    now: float


class Headline(TypedDict):
    """The metric that a run is judged by first."""

    name: str
    last: float | None
    best: float | None


class Alert(TypedDict, total=False):
    """An alert in short."""

    rule: str
    severity: str
    state: str
    text: str


class Cost(TypedDict):
    """Money."""

    amount: float
    currency: str


class Card(TypedDict):
    """What the list shows of a run's points."""

    rate: float | None
    recent_rate: float | None
    samples_per_second: float | None
    loss: Headline | None
    spark: list[float | None]
    gpu: float | None
    step_seconds: float | None
    epoch: float | None
    total_steps: int | None
    left: float | None
    cost: Cost | None
    alert: Alert | None
    problems: int


class Row(TypedDict):
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
    attempts: int
    card: Card | None


class RunList(TypedDict):
    """The list of runs, or what changed in it."""

    version: int
    complete: bool
    reading: int
    total: int
    rows: list[Row]
    gone: list[str]


class Status(TypedDict):
    """How a run stands at this moment."""

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
    worst: str | None


class Rank(TypedDict):
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


class Number(TypedDict):
    """A key number."""

    key: str
    label: str
    value: float | None
    """None where it is not finite."""
    unit: str
    text: str


class Head(TypedDict):
    """The first screen of a run."""

    run: dict[str, Any]
    status: Status
    card: Card
    ranks: list[Rank]
    numbers: list[Number]
    time: dict[str, Any] | None
    throughput: list[dict[str, Any]]
    important: list[str]
    changes: list[dict[str, Any]]
    end: dict[str, Any] | None
    points: int
    problems: list[str]
    definitions: dict[str, str]


class Metric(TypedDict):
    """One metric of a run."""

    name: str
    unit: str
    kind: str
    help: str
    group: str
    source: str
    count: int
    important: bool


class Metrics(TypedDict):
    """The metrics of a run."""

    ranks: list[int]
    attempts: list[int]
    metrics: list[Metric]


class Hello(TypedDict):
    """Where a page begins that follows a run."""

    cursor: str
    curves: list[list[Any]]
    status: Status


class Event(TypedDict):
    """What happened."""

    time: float
    kind: str
    rank: int | None
    attempt: int | None
    step: int | None
    text: str
    data: dict[str, Any]


class Events(TypedDict):
    """The newest events of a run."""

    total: int
    events: list[Event]


class Histograms(TypedDict):
    """The histograms of one name."""

    names: list[str]
    rows: list[dict[str, Any]]


class Chart(TypedDict):
    """What of the machine is drawn together."""

    group: str
    title: str
    unit: str
    names: list[str]
    limit: str | None


class Machine(TypedDict):
    """The machine of a run."""

    nodes: list[dict[str, Any]]
    gpus: list[dict[str, Any]]
    processes: list[dict[str, Any]]
    groups: list[Chart]


class Setting(TypedDict):
    """A setting in several runs."""

    key: str
    values: list[Any]
    same: bool


class Comparison(TypedDict):
    """Some runs beside the first of them."""

    runs: list[dict[str, Any]]
    config: list[Setting]
    numbers: list[dict[str, Any]]
    phases: list[list[dict[str, Any]]]
    notes: list[str]


class Alerts(TypedDict):
    """The alerts of a run, those that last first."""

    total: int
    alerts: list[dict[str, Any]]
    deliveries: list[dict[str, Any]]


class Recipe(TypedDict):
    """Texts that give the same numbers."""

    python: str
    sql: str
    shell: str


class Accepted(TypedDict):
    """What became of a request."""

    ok: bool
    text: str


class Diagnosis(TypedDict):
    """Why a run is slow or goes wrong."""

    run: dict[str, Any]
    primary: Any
    findings: list[dict[str, Any]]


Wasted = TypedDict("Wasted", {"class": str, "seconds": float, "share": float | None, "remedy": str})
"""A class of time that a better run would have less of; `class` cannot be written as an attribute."""


class Ledger(TypedDict):
    """Where the time, the money and the energy went."""

    wall_seconds: float
    paid_seconds: float
    goodput_ratio: float | None
    ranks: int
    steps: int
    seconds: dict[str, float]
    attempts: list[dict[str, Any]]
    imported: dict[str, Any] | None
    devices: int
    device: str
    money: dict[str, Any] | None
    energy: dict[str, Any] | None
    wasted: list[Wasted]
    forecast: dict[str, Any] | None
    advice: list[dict[str, Any]]
    classes: dict[str, str]
    definitions: dict[str, str]
