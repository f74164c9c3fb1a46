"""Sets of alert rules to start from (default, strict, quiet, compatible thresholds), and options that change them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from stepscope.alerts.rules import builtin
from stepscope.alerts.rules.expression import POINTS, RuleWindow
from stepscope.alerts.rules.rule import CRITICAL, Rule
from stepscope.core import thresholds
from stepscope.core.errors import UsageError
from stepscope.core.kinds import describe, parse_float

if TYPE_CHECKING:
    from collections.abc import Mapping

SECTION = "alerting."


@dataclass(frozen=True)
class RuleProfile:
    """The differences from the default rules."""

    text: str
    thresholds: Mapping[str, float] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    """Severities or names of rules that are on; all if empty."""
    plain: bool = False
    """Compare the gradient norm with the threshold alone, not with its baseline."""


PROFILES: dict[str, RuleProfile] = {
    "default": RuleProfile("moderate thresholds: alerts worth waking up for"),
    "strict": RuleProfile(
        "earlier warnings, for a run that you cannot afford to lose",
        {
            "loss_increase": 0.05,
            "training_speed": 0.25,
            "gpu_memory": 0.9,
            "gpu_utilization": 0.7,
            "cpu_usage": 0.9,
            "memory_usage": 0.8,
            "io_wait": 0.2,
            "disk_usage": 0.85,
            "data_wait": 0.15,
            "straggler": 0.05,
            "plateau_points": 1000,
            "gpu_temperature": 75.0,
        },
    ),
    "quiet": RuleProfile(
        "only alerts about failures that end or ruin a run",
        only=(CRITICAL, "memory_leak", "disk_filling", "disk_usage"),
    ),
    "performance-monitoring": RuleProfile(
        "loss 10 %, GPU memory 90 %, CPU 95 %, speed 50 %",
        {"loss_increase": 0.1, "gpu_memory": 0.9, "cpu_usage": 0.95, "training_speed": 0.5},
    ),
    "performance-monitoring-advanced": RuleProfile(
        "stricter: loss 5 %, GPU memory 85 %, CPU 90 %, speed 70 %",
        {"loss_increase": 0.05, "gpu_memory": 0.85, "cpu_usage": 0.9, "training_speed": 0.7},
    ),
    "training-monitor": RuleProfile(
        "thresholds of `TrainingMonitor`: CPU 85 %, memory 80 %, gradient norm 10, learning rate 1e-8",
        {"cpu_usage": 0.85, "memory_usage": 0.8, "grad_norm_exploded": 10.0, "learning_rate_too_low": 1e-8},
        plain=True,
    ),
    "gpu-monitor": RuleProfile(
        "thresholds of `GPUMonitor`: 80 °C, memory 90 %, gradient norm 10, loss not decreasing",
        {"gpu_temperature": 80.0, "gpu_memory": 0.9, "memory_usage": 0.9, "grad_norm_exploded": 10.0},
        plain=True,
    ),
    "resource-monitor": RuleProfile(
        "thresholds of `ResourceMonitorCallback`: GPU below 50 %, memory 90 %, I/O wait 30 %, 80 °C",
        {"gpu_utilization": 0.5, "memory_usage": 0.9, "io_wait": 0.3, "gpu_temperature": 80.0},
    ),
}
"""By name, for `alerting.profile`."""

RESOURCE_RULES = {
    "gpu_underutilization": ("gpu_underused",),
    "memory_pressure": ("memory_pressure",),
    "io_bottleneck": ("io_wait", "io_pressure"),
}
"""Rules that `alerting.NAME` turns off, and the resource callback's option `alert_NAME`."""
SWITCHES = {
    **{f"alerting.{name}": names for name, names in RESOURCE_RULES.items()},
    "watcher.analysis.anomaly": ("anomaly",),
    "watcher.analysis.trend": ("loss_plateau", "memory_leak", "gpu_memory_leak", "disk_filling"),
    "watcher.analysis.regression": ("training_speed",),
}
"""Settings that turn rules off."""
RESOURCE_THRESHOLDS = {
    "gpu_util_threshold": ("gpu_utilization", 0.5),
    "memory_threshold": ("memory_usage", 0.9),
    "io_wait_threshold": ("io_wait", 0.3),
}
"""The threshold behind each option of the resource callback, and the option's default, which changes nothing."""


def changes_of(options: Mapping[str, Any]) -> tuple[dict[str, float], set[str]]:
    """Return the effect of the resource callback's options: thresholds by name, and the rules that are off."""
    limits = {}
    for key, (name, usual) in RESOURCE_THRESHOLDS.items():
        value = options.get(key)
        if isinstance(value, (int, float)) and value != usual and 0 < value <= 1:
            limits[name] = float(value)
    return limits, {
        rule for name, rules in RESOURCE_RULES.items() if options.get(f"alert_{name}") is False for rule in rules
    }


def profile(name: str = "default", limits: Mapping[str, float] | None = None) -> list[Rule]:
    """Return the rules of one of `PROFILES`, with `limits` (by name) in place of its thresholds.

    Raises:
        UsageError: the profile or a threshold is unknown.
    """
    chosen = PROFILES.get(name)
    if chosen is None:
        raise UsageError(
            f"use alert profile {name!r}", "there is no such profile", f"choose one of {', '.join(PROFILES)}"
        )
    unknown = set(limits or ()) - set(builtin.THRESHOLDS)
    if unknown:
        known = ", ".join(builtin.THRESHOLDS)
        raise UsageError(f"set the threshold {min(unknown)!r}", "there is no such threshold", f"there are {known}")
    given = {**chosen.thresholds, **(limits or {})}
    found = builtin.rules(given)
    if chosen.only:
        found = [rule for rule in found if rule.severity in chosen.only or rule.name in chosen.only]
    if chosen.plain:
        most = given.get("grad_norm_exploded", builtin.THRESHOLDS["grad_norm_exploded"])
        found = [_plain(rule, most) if rule.name == "gradient_exploding" else rule for rule in found]
    return found


def _plain(rule: Rule, most: float) -> Rule:
    """Return the rule on the gradient norm without its baseline."""
    return replace(
        rule,
        when=f"grad_norm > {most:g}",
        clear=f"median(grad_norm, 20) < {most:g}",
        lasting=RuleWindow(1, POINTS),
        message=f"the gradient norm is {{shown}}, above {most:g}",
        help="The gradient norm is above the threshold.",
    )


def rules_of(settings: Mapping[str, Any]) -> tuple[list[Rule], list[str]]:
    """Return the rules that a configuration asks for, and its problems as sentences.

    A rule with the name of a built-in rule replaces it; `enabled: false` turns it off. A threshold of 0, or none, is
    the profile's.
    """
    from stepscope.alerts.rules.rules_file import load_rules, read_rules

    problems: list[str] = []
    if not settings.get(f"{SECTION}enabled", True):
        return [], []
    limits = _thresholds(settings, problems)
    try:
        found = profile(str(settings.get(f"{SECTION}profile") or "default"), limits)
    except UsageError as error:
        problems.append(str(error))
        found = profile("default")
    off = {name for key, names in SWITCHES.items() if settings.get(key) is False for name in names}
    own: list[Rule] = []
    for item in settings.get(f"{SECTION}rules") or ():
        if isinstance(item, str):  # a file of rules
            try:
                own += load_rules(item)
            except UsageError as error:
                problems.append(str(error))
            continue
        rules, wrong = read_rules([_with_builtin(item, found)])
        own += rules
        problems += wrong
    named = {rule.name: rule for rule in [*found, *own] if rule.name not in off}
    return [rule for rule in named.values() if rule.enabled], problems


def _thresholds(settings: Mapping[str, Any], problems: list[str]) -> dict[str, float]:
    """Return the thresholds that are set, each checked in the same way wherever it comes from."""
    prefix = thresholds.PREFIX
    found = {}
    for path, value in settings.items():
        name = path.removeprefix(prefix)
        if not path.startswith(prefix) or value in (None, 0, 0.0):
            continue
        known = thresholds.BY_NAME.get(name)
        if known is None:
            problems.append(f"there is no threshold '{name}'; there are {', '.join(thresholds.BY_NAME)}")
            continue
        try:
            found[name] = parse_float(known.parse(value))
        except ValueError as error:
            cause = f"it is {describe(value)}, {error}"
            problems.append(str(UsageError(f"set the threshold '{name}'", cause, f"the default is {known.default:g}")))
    return found


def _with_builtin(item: Any, found: list[Rule]) -> Any:
    """Return a rule that changes parts of a built-in one, with the other parts filled in."""
    if not isinstance(item, dict) or any(key in item for key in ("when", "detect", "event")):
        return item
    base = next((rule for rule in found if rule.name == item.get("name")), None)
    return item if base is None else {**base.facts(), **item}
