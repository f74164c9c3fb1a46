"""The text of an alert: the message, the evidence, the remedy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from stepscope.alerts.evaluation.state import AlertText
from stepscope.alerts.rules.expression import COMPARISONS, CallNode, MetricNode, Node, OperationNode, walk
from stepscope.alerts.rules.template import fill
from stepscope.core.endings import end_words
from stepscope.core.events import HANG_VERDICT
from stepscope.core.numbers import format_value
from stepscope.core.remedies import REMEDIES, crash_remedy, spoken
from stepscope.core.strict_json import strict
from stepscope.core.vocabulary import unit_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.alerts.rules.rule import Rule
    from stepscope.analysis.finding import Finding

SIGNS = {">": "above", ">=": "at least", "<": "below", "<=": "at most", "==": "equal to", "!=": "not"}
BY_URGENCY = {"leak", "disk_full"}
"""Findings that are the more severe the less time is left."""
UNITLESS = {"slope", "rate", "zscore", "count", "finite"}
"""Functions whose value does not have the unit of their metric."""


def deciding(node: Node) -> OperationNode | None:
    """Return the comparison of a condition whose two sides are shown."""
    return next((part for part in walk(node) if isinstance(part, OperationNode) and part.sign in COMPARISONS), None)


def unit_in(node: Node, names: Mapping[str, str]) -> str:
    """Return the unit of one side of a comparison: that of its metric, or a ratio; empty if it has none."""
    if isinstance(node, OperationNode) and node.sign == "/":
        units = {unit_in(operand, names) for operand in node.operands}
        return "ratio" if len(units) == 1 and units != {""} else ""
    while isinstance(node, CallNode) and node.name not in UNITLESS:
        node = node.of
    return unit_of(names.get(node.name, node.name)) if isinstance(node, MetricNode) else ""


def of_condition(
    rule: Rule, facts: Mapping[str, Any], values: Mapping[str, float], sides: tuple[float, float] | None, unit: str
) -> AlertText:
    """Return the text for a condition that holds.

    `facts` has metric, rank, step and instance; `values` the newest value of every metric of the condition; `sides`
    the two sides of the deciding comparison, in `unit`.
    """
    evidence: dict[str, Any] = {"metric": facts["metric"], "condition": rule.when}
    last = values.get(facts["metric"], math.nan)
    evidence["value"], evidence["threshold"] = (_plain(side) for side in sides or (last, None))
    evidence["window"] = _windows(rule)
    if rule.lasting.size:
        evidence["for"] = str(rule.lasting)
    evidence["values"] = {name: _plain(value) for name, value in values.items()}
    shown = {"shown": format_value(sides[0] if sides else last, unit)}
    shown |= {"limit": format_value(sides[1], unit)} if sides else {}
    given = {**values, **facts, **evidence, **shown, "last": last, "rule": rule.name, "severity": rule.severity}
    text = fill(rule.message, given) if rule.message else _default(rule, facts, shown)
    return AlertText(text, fill(rule.remedy, {**spoken(facts), **given}), rule.severity, evidence)


def _windows(rule: Rule) -> str:
    calls = [part for part in walk(rule.condition) if isinstance(part, CallNode)] if rule.condition is not None else []
    windows = [str(window) for call in calls for window in call.windows]
    return ", ".join(dict.fromkeys(windows)) or "the newest value"


def _default(rule: Rule, facts: Mapping[str, Any], shown: Mapping[str, str]) -> str:
    comparison = deciding(rule.condition) if rule.condition is not None else None
    if comparison is None or "limit" not in shown:
        return f"{rule.name}: {rule.when} holds for {facts['metric']}"
    lasting = f" for {rule.lasting}" if rule.lasting.size else ""
    return f"{facts['metric']} is {shown['shown']}, {SIGNS[comparison.sign]} {shown['limit']} ({rule.when}){lasting}"


def of_finding(rule: Rule, facts: Mapping[str, Any], finding: Finding) -> AlertText:
    """Return the text for a finding of a detector: the rule's message, otherwise the finding's."""
    evidence = {"metric": facts["metric"], "detector": rule.detect, **finding.evidence}
    evidence = {key: _plain(value) for key, value in evidence.items()}
    given = {**evidence, **facts, "text": finding.text, "rule": rule.name}
    severity = finding.severity if finding.kind in BY_URGENCY else rule.severity
    text = fill(rule.message, given) if rule.message else finding.text
    remedy = fill(rule.remedy, {**spoken({**facts, "rank": finding.evidence.get("rank")}), **given})
    own = finding.remedy if rule.remedy in ("", REMEDIES.get(finding.kind)) else ""  # more exact than that of its kind
    return AlertText(text, own or remedy or finding.remedy, severity, evidence)


def of_event(rule: Rule, event: Mapping[str, Any], rank: int | None) -> AlertText:
    """Return the text for an event of the run."""
    kept = {key: value for key, value in event.items() if isinstance(value, (str, int, float, bool)) and key != "kind"}
    evidence = {"event": event.get("kind"), **{key: _plain(value) for key, value in list(kept.items())[:40]}}
    given = {**kept, "rank": "the machine" if rank is None else rank, "rule": rule.name, "event": event.get("kind")}
    state, cause = str(event.get("state", "")), str(event.get("cause", ""))
    if event.get("kind") == "ended":
        given["end"] = end_words(state, cause)
    reasons = (event.get(key) for key in ("why", "cause", "meaning", "reason", "error"))
    reason = next((str(each) for each in reasons if each), "")
    text = fill(rule.message, given) if rule.message else f"{event.get('kind')}: {reason}"
    if event.get("kind") == HANG_VERDICT:
        text = str(event.get("text") or text)  # it is a sentence already
        evidence = _of_verdict(event)
    own = event.get("remedy") or (crash_remedy(state, cause) if rule.remedy == REMEDIES["crash"] else "")
    remedy = own if isinstance(own, str) and own else fill(rule.remedy, {**spoken(event), **given})
    return AlertText(text, remedy, rule.severity, evidence)


def _of_verdict(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a verdict on a hang rests on, without its text and remedy, which the alert has already."""
    from stepscope.analysis.hang.spelling import who  # a training that never hangs needs none of these
    from stepscope.analysis.hang.standing import standing_verdict

    found = standing_verdict([event])
    if found is None:
        return {"event": event.get("kind")}
    ranks, waiting = (who(some) if some else "" for some in (found.ranks, found.waiting))
    facts = {"event": HANG_VERDICT, "verdict": found.kind, "cause": ranks, "waiting": waiting}
    return {**facts, "confidence": found.confidence, "sources": dict(found.evidence)}


def _plain(value: Any) -> Any:
    """Return a value for strict JSON: NaN and infinity as text, numpy's scalars as Python's."""
    return strict(value.item() if hasattr(value, "item") else value, str)
