"""Types of the responses that analyse a run: comparison, alerts, diagnosis and ledger; see `responses`."""

from __future__ import annotations

from typing import Any

from msgspec import field

from stepscope.web.json_object import Response
from stepscope.web.responses import ComparedRun, Happening, LastAlert, PhaseShare


class Setting(Response):
    """A setting and its value in each run."""

    key: str
    values: list[Any]
    same: bool


class ComparedValue(Response):
    """The value of a quantity in one run."""

    value: float | None


class QuantityDifference(Response):
    """The difference of a quantity to the first run."""

    ratio: float | None
    low: float | None
    high: float | None
    confidence: float | None
    verdict: str
    text: str


class Quantity(Response):
    """A quantity of several runs."""

    name: str
    unit: str
    definition: str
    better: str | None
    """Whether lower or higher is better."""
    values: list[ComparedValue | None]
    differences: list[QuantityDifference | None]


class RunComparison(Response):
    """Runs compared with the first of them."""

    runs: list[ComparedRun]
    config: list[Setting]
    numbers: list[Quantity]
    phases: list[list[PhaseShare]]
    notes: list[str]


class AlertTransition(Response):
    """One change of an alert."""

    time: float
    state: str
    severity: str
    text: str


class AlertRow(LastAlert):
    """An alert: pending, firing, acknowledged, silenced or resolved."""

    alert: str
    since: float
    until: float | None
    remedy: str
    labels: dict[str, Any]
    evidence: dict[str, Any]
    rank: int | None
    step: int | None
    key: str
    count: int
    transitions: list[AlertTransition]


class ChannelDelivery(Response):
    """Notifications of one channel: sent, waiting, failing or dead."""

    channel: str
    node: str
    state: str
    sent: int
    waiting: int
    dead: int
    time: float | None
    why: str


class Alerts(Response):
    """The alerts of a run, active alerts first."""

    total: int
    alerts: list[AlertRow]
    deliveries: list[ChannelDelivery]


class Recipe(Response):
    """Code that reads the same numbers."""

    python: str
    sql: str
    shell: str


class FindingRow(Response):
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


class DiagnosedRun(Response):
    """The run of a diagnosis."""

    id: str
    name: str
    project: str
    path: str
    state: str


class MovedMetric(Response):
    """A metric that changed together with another one."""

    name: str
    before: float | None
    after: float | None
    text: str
    explains: float | None = None
    spreads: float | None = None


class MetricChange(Response):
    """A lasting change of a metric."""

    metric: str
    step: int
    until: int
    time: float
    before: float | None
    after: float | None
    cost_seconds: float | None
    text: str
    moved: list[MovedMetric]
    events: list[Happening]


class SlowStep(Response):
    """A step that took much longer than usual."""

    step: int
    time: float
    seconds: float
    usual_seconds: float
    phases: dict[str, float]
    io_waiting_ratio: float | None
    events: list[Happening]
    text: str


class MissingSignal(Response):
    """A signal that the diagnosis lacks."""

    signal: str
    why: str
    remedy: str


class Diagnosis(Response):
    """Why a run is slow or fails; `primary` is the kind of the most important finding, or none."""

    run: DiagnosedRun
    primary: str
    summary: str
    findings: list[FindingRow]
    changes: list[MetricChange]
    slow_steps: list[SlowStep]
    missing: list[MissingSignal]
    notes: list[str]
    steps: int
    seconds: float
    devices: int


class LedgerAttempt(Response):
    """Seconds of one attempt by class."""

    attempt: int
    began: float
    seconds: float
    ranks: int
    state: str
    classes: dict[str, float]


class Import(Response):
    """The log that a run was imported from."""

    format: str
    timed: bool


class Money(Response):
    """Cost of a run by class."""

    currency: str
    per_device_hour: float
    source: str
    total: float
    wasted: float
    classes: dict[str, float]


class RunEnergy(Response):
    """Energy of a run by class."""

    joules: dict[str, float]
    total_joules: float
    kwh: float
    co2_kg: float | None
    grams_per_kwh: float | None
    region: str
    sources: list[str]
    covered_ratio: float


class Wasted(Response):
    """A class of time that a better run would have less of."""

    class_: str = field(name="class")
    seconds: float
    share: float | None
    remedy: str


class EndForecast(Response):
    """Estimated end of a running run."""

    seconds: float
    low: float
    high: float | None
    text: str
    steps: int
    money: float | None


class RunLedger(Response):
    """Time, money and energy of a run, each by class."""

    wall_seconds: float
    paid_seconds: float
    goodput_ratio: float | None
    ranks: int
    read_ranks: int
    """Ranks whose steps were read: in a run of very many steps they stand for all."""
    steps: int
    seconds: dict[str, float]
    attempts: list[LedgerAttempt]
    imported: Import | None
    devices: int
    device: str
    money: Money | None
    energy: RunEnergy | None
    wasted: list[Wasted]
    forecast: EndForecast | None
    advice: list[FindingRow]
    classes: dict[str, str]
    """What each class contains."""
    definitions: dict[str, str]
