"""An alert rule as data: its condition, when it fires, its severity, its message and its remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stepscope.alerts.rules import expression
from stepscope.alerts.rules.expression import POINTS, STEPS, TIME, ExpressionError, Node, OperationNode, RuleWindow
from stepscope.core.errors import UsageError
from stepscope.core.kinds import describe, parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

INFO, WARNING, CRITICAL = "info", "warning", "critical"
SEVERITIES = (INFO, WARNING, CRITICAL)
EACH = "each"
OVER = (EACH, "max", "min", "mean", "sum", "spread")
"""How the values of all ranks are combined: not at all, or for each step. Spread is the highest over the median."""
MOST_TEXT = 2000
MOST_LABELS = 32
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,79}", re.ASCII)
_SPAN = re.compile(r"\s*(\d+)\s*(steps?|points?)\s*", re.ASCII)
AT_ONCE = RuleWindow(0, TIME)
VALUE = "value"
"""The name of the rule's own `metric` in a condition."""


@dataclass(frozen=True)
class Escalation:
    """The escalation of an alert that is not acknowledged."""

    after: float
    """Seconds of firing without acknowledgement."""
    severity: str = CRITICAL


@dataclass(frozen=True)
class Rule:
    """One rule. It has exactly one of `when`, `detect` and `event`."""

    name: str
    when: str = ""
    """A condition, see `stepscope.alerts.rules.expression`."""
    detect: str = ""
    """A detector of `stepscope.alerts.evaluation.detectors`."""
    event: tuple[str, ...] = ()
    """Kinds of events of the run."""
    metric: tuple[str, ...] = ()
    """Names or patterns of the metrics that `value` stands for in the condition, or that the detector reads."""
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values that fields of the event must have."""
    until: tuple[str, ...] = ()
    """Kinds of events that resolve it; without any, it resolves by itself after a while."""
    same: tuple[str, ...] = ()
    """Fields, such as `gpu`: events with equal values in them belong to the same alert."""
    over: str = EACH
    options: Mapping[str, float] = field(default_factory=dict)
    """Settings of the detector."""
    lasting: RuleWindow = AT_ONCE
    """How long the condition must hold before it fires (`for` in YAML)."""
    keep: RuleWindow = AT_ONCE
    """How long the condition must be false before it resolves."""
    clear: str = ""
    """Condition that resolves it; by default, `when` is false."""
    hysteresis: float = 0.0
    """Share of the threshold by which the value must be back before it resolves."""
    cooldown: float = 300.0
    """Seconds between two alerts of the same series, event or rank."""
    severity: str = WARNING
    escalate: Escalation | None = None
    message: str = ""
    remedy: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    actions: tuple[Any, ...] = ()
    """Actions other than notifications; plain data that the watcher interprets."""
    enabled: bool = True
    help: str = ""
    """Its purpose, in one sentence of the documentation."""

    @cached_property
    def condition(self) -> Node | None:
        """The tree of `when`."""
        return expression.parse(self.when) if self.when else None

    @cached_property
    def clearing(self) -> Node | None:
        """The tree of the condition that resolves it; None if that is the opposite of `when`."""
        if self.clear:
            return expression.parse(self.clear)
        return _opposite(self.condition, self.hysteresis) if self.hysteresis and self.condition else None

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Names and patterns that the condition reads; it is evaluated on each point of the first one."""
        if self.condition is None:
            return self.metric[:1]
        named = expression.metrics_of(self.condition)
        if self.clearing is not None:
            named += [name for name in expression.metrics_of(self.clearing) if name not in named]
        return tuple(named)

    def facts(self) -> dict[str, Any]:
        """Return the rule as plain data, as in a file; `rule_of` reads it back."""
        found: dict[str, Any] = {
            **{key: getattr(self, key) for key in ("name", "when", "detect", "over", "clear")},
            **{key: list(getattr(self, key)) for key in ("event", "metric", "until", "same")},
            **{key: dict(getattr(self, key)) for key in ("options", "labels")},
            "where": {key: list(value) for key, value in self.where.items()},
            "for": _span_text(self.lasting),
            "keep": _span_text(self.keep),
            **{key: getattr(self, key) for key in ("hysteresis", "cooldown", "severity")},
            "escalate": asdict(self.escalate) if self.escalate else None,
            **{key: getattr(self, key) for key in ("message", "remedy", "help")},
            "actions": list(self.actions),
        }
        found = {key: value for key, value in found.items() if value or key == "cooldown"}
        return found if self.enabled else {**found, "enabled": False}


def _span_text(window: RuleWindow) -> str:
    if not window.size:
        return ""
    return f"{window.size:g}s" if window.unit == TIME else f"{window.size:g} {window.unit}"


def _opposite(node: Node, share: float) -> Node:
    """Return the condition that a value is back within its threshold by a share of it."""
    if not isinstance(node, OperationNode) or node.sign not in {">", ">=", "<", "<="}:
        raise ExpressionError("is no single comparison, so hysteresis has no threshold: give 'clear' instead")
    left, right = node.operands
    margin = OperationNode("*", (expression.NumberNode(share), expression.CallNode("abs", right)))
    inverse, sign = ("<", "-") if node.sign.startswith(">") else (">", "+")
    return OperationNode(inverse, (left, OperationNode(sign, (right, margin))))


KEYS = {key.name for key in fields(Rule)} - {"lasting"} | {"for", "cooldown_seconds"}


class _RuleReader:
    """Reads one mapping; collects every problem instead of stopping at the first."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.problems: list[str] = []

    def text(self, key: str, default: str = "") -> str:
        value = self.given.get(key, default)
        if not isinstance(value, str) or len(value) > MOST_TEXT * 3:
            self.problems.append(f"'{key}' is {describe(value)}, not a text of at most {MOST_TEXT * 3} characters")
            return default
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.given.get(key, ())
        several = (value,) if isinstance(value, str) else value
        if not isinstance(several, (list, tuple)) or not all(isinstance(item, str) and item for item in several):
            self.problems.append(f"'{key}' is {describe(value)}, not a text or a list of texts")
            return ()
        return tuple(several)

    def choice(self, key: str, among: Iterable[str], default: str) -> str:
        value = self.given.get(key, default)
        if value not in among:
            self.problems.append(f"'{key}' is {describe(value)}, not one of {', '.join(among)}")
            return default
        return str(value)

    def hysteresis(self) -> float:
        value = self.given.get("hysteresis", 0.0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 10:
            self.problems.append(f"'hysteresis' is {describe(value)}, not a number from 0 to 10")
            return 0.0
        return float(value)

    def seconds(self, key: str, default: float) -> float:
        try:
            return parse_duration(self.given[key]) if key in self.given else default
        except ValueError as error:
            self.problems.append(f"'{key}' is {describe(self.given[key])}, {error}")
            return default

    def span(self, key: str) -> RuleWindow:
        value = self.given.get(key, 0)
        found = _SPAN.fullmatch(value) if isinstance(value, str) else None
        if found is not None:
            return RuleWindow(int(found[1]), STEPS if found[2].startswith("step") else POINTS)
        try:
            return RuleWindow(parse_duration(value), TIME)
        except ValueError:
            self.problems.append(f"'{key}' is {describe(value)}, not a span such as 30s, 5min, 20 steps or 5 points")
            return RuleWindow(0, TIME)

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.given.get(key, {})
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            self.problems.append(f"'{key}' is {describe(value)}, not a mapping")
            return {}
        return value

    def where(self) -> dict[str, tuple[Any, ...]]:
        found = self.mapping("where")
        return {key: tuple(value) if isinstance(value, (list, tuple)) else (value,) for key, value in found.items()}

    def labels(self) -> dict[str, str]:
        found = self.mapping("labels")
        if len(found) > MOST_LABELS:
            self.problems.append(f"'labels' has more than {MOST_LABELS} entries")
        return {key[:80]: str(value)[:200] for key, value in list(found.items())[:MOST_LABELS]}

    def options(self) -> dict[str, float]:
        found = self.mapping("options")
        for key, value in found.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                self.problems.append(f"option '{key}' is {describe(value)}, not a number")
        return {key: float(value) for key, value in found.items() if isinstance(value, (int, float))}

    def escalation(self) -> Escalation | None:
        if "escalate" not in self.given:
            return None
        inner = _RuleReader(self.mapping("escalate"))
        found = Escalation(inner.seconds("after", 1800.0), inner.choice("severity", SEVERITIES, CRITICAL))
        self.problems += [f"escalate: {problem}" for problem in inner.problems]
        return found


def read_rule(given: object) -> tuple[Rule | None, list[str]]:
    """Return the rule that a mapping describes, and all its problems; None if there is any."""
    if not isinstance(given, Mapping):
        return None, [f"a rule is {describe(given)}, not a mapping with name and when"]
    reader = _RuleReader(given)
    name = reader.text("name")
    if not _NAME.fullmatch(name):
        reader.problems.append(f"its name is {describe(name)}: letters, digits, '_', '.' and '-', at most 80")
    reader.problems += [f"it has an unknown key {describe(key)}{_near(str(key))}" for key in given if key not in KEYS]
    cooldown = "cooldown_seconds" if "cooldown_seconds" in given else "cooldown"
    actions = given.get("actions") or ()
    plain: dict[str, Any] = {key: reader.text(key) for key in ("when", "detect", "clear", "message", "remedy", "help")}
    plain |= {key: reader.texts(key) for key in ("event", "metric", "until", "same")}
    rule = Rule(
        name=name,
        **plain,
        where=reader.where(),
        over=reader.choice("over", OVER, EACH),
        options=reader.options(),
        lasting=reader.span("for"),
        keep=reader.span("keep"),
        hysteresis=reader.hysteresis(),
        cooldown=reader.seconds(cooldown, 300.0),
        severity=reader.choice("severity", SEVERITIES, WARNING),
        escalate=reader.escalation(),
        labels=reader.labels(),
        actions=tuple(actions) if isinstance(actions, (list, tuple)) else (),
        enabled=given.get("enabled", True) is True,
    )
    reader.problems += _contradictions(rule)
    problems = [f"rule {describe(name)}: {problem}" for problem in reader.problems]
    return (None, problems) if problems else (rule, [])


def rule_of(given: Mapping[str, Any]) -> Rule:
    """Return the rule that a mapping describes; if it is invalid, the UsageError lists all problems."""
    rule, problems = read_rule(given)
    if rule is None:
        raise UsageError("read an alert rule", "; ".join(problems), "docs/reference/alerts.md has every key")
    return rule


def _near(key: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key[:80], KEYS, 1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _contradictions(rule: Rule) -> list[str]:
    """Return contradictions in a rule whose keys are valid."""
    from stepscope.alerts.evaluation.detectors import DETECTORS

    if sum(map(bool, (rule.when, rule.detect, rule.event))) != 1:
        return ["it needs exactly one of 'when', 'detect' and 'event'"]
    if rule.detect:
        if rule.detect not in DETECTORS:
            return [f"'detect' is {describe(rule.detect)}, not one of {', '.join(DETECTORS)}"]
        known = DETECTORS[rule.detect].options
        found = [f"the detector {rule.detect} has no option '{key}'" for key in rule.options if key not in known]
        return found if rule.metric or DETECTORS[rule.detect].metric else [*found, "a detector needs a 'metric'"]
    try:
        needs_metric = rule.when and VALUE in rule.metrics and not rule.metric
    except ExpressionError as error:
        return [f"the condition {error}"]
    if needs_metric:
        return ["the condition says 'value', and the rule has no 'metric'"]
    return [] if rule.when or not (rule.clear or rule.hysteresis) else ["'clear' and 'hysteresis' need 'when'"]


def metric_names(rule: Rule) -> list[str]:
    """Return every name and pattern of a metric in a rule."""
    named = [name for name in rule.metrics if name != VALUE] if rule.condition else []
    return list(dict.fromkeys([*named, *rule.metric]))
