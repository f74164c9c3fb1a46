"""Reads rules from a YAML file, and finds misspelt metrics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.alerts.rules.rule import Rule, metric_names, read_rule
from stepscope.core.errors import UsageError
from stepscope.core.vocabulary import BY_NAME, aliases, matches, metric_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

MOST_RULES = 1000
MOST_BYTES = 1 << 20
MOST_SHOWN = 20


def load_rules(path: str | Path) -> list[Rule]:
    """Return the rules of a file: a list, or a mapping with the key `rules`; the UsageError names every problem."""
    from stepscope.core.yaml_text import YamlRefusal, read_text

    what = f"load the rules of '{path}'"
    try:
        with Path(path).open("rb") as file:
            text = file.read(MOST_BYTES + 1).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(what, error, "name a YAML file with a list of rules") from error
    if len(text) > MOST_BYTES:
        raise UsageError(what, f"it is larger than {MOST_BYTES} bytes", "split it")
    try:
        tree = read_text(text).data
    except YamlRefusal as refusal:
        try:  # a document must be a mapping: indent a bare list to make it the value of one
            tree = read_text("rules:\n" + "\n".join(f"  {line}" for line in text.split("\n"))).data
        except YamlRefusal:
            raise UsageError(what, refusal.cause, refusal.remedy) from refusal
    rules, problems = read_rules(tree.get("rules") if "rules" in tree else None)
    unknown = [key for key in tree if key != "rules"]
    if unknown:
        problems.insert(0, f"the file has the key {unknown[0]!r} beside 'rules'")
    if problems:
        raise _error(what, problems)
    return rules


def _error(what: str, problems: list[str]) -> UsageError:
    if len(problems) == 1:
        return UsageError(what, problems[0], "docs/reference/alerts.md has every key")
    listed = "".join(f"\n  {problem}" for problem in problems[:MOST_SHOWN])
    return UsageError(what, f"{len(problems)} problems", f"correct each of them:{listed}")


def read_rules(given: Any) -> tuple[list[Rule], list[str]]:
    """Return the valid rules of a list, and the problems of the others."""
    if not isinstance(given, (list, tuple)):
        return [], ["there is no list of rules"]
    if len(given) > MOST_RULES:
        return [], [f"there are more than {MOST_RULES} rules"]
    found: dict[str, Rule] = {}
    problems: list[str] = []
    for item in given:
        rule, wrong = read_rule(item)
        problems += wrong
        if rule is not None and rule.name in found:
            problems.append(f"rule '{rule.name}' is there twice")
        elif rule is not None:
            found[rule.name] = rule
            problems += misspelt(rule)
    return list(found.values()), problems


def misspelt(rule: Rule, recorded: Collection[str] = ()) -> list[str]:
    """Return the metrics of a rule that look misspelt: the name is unknown, and a known one hardly differs.

    `recorded` has the names of metrics in a run, which are valid in addition to the vocabulary.
    """
    from difflib import get_close_matches

    known = [*BY_NAME, *aliases, *SAMPLED, *recorded]
    found = []
    for name in metric_names(rule):
        if is_known(name, recorded):
            continue
        near = get_close_matches(name, known, 1, 0.85)
        dividend, _, divisor = name.rpartition("/")
        if near:
            found.append(f"rule '{rule.name}': no metric is called '{name}'; did you mean '{near[0]}'?")
        elif divisor.replace(".", "").isdecimal() and is_known(dividend, recorded):
            found.append(f"rule '{rule.name}': no metric is called '{name}'; to divide write '{dividend} / {divisor}'")
        elif recorded:
            found.append(f"rule '{rule.name}': these runs have no metric '{name}'")
    return found


SAMPLED = (
    *("cpu/iowait_ratio", "cpu/machine_usage_ratio", "cpu/steal_ratio", "cpu/load_1m", "memory/total_bytes"),
    *("memory/headroom_bytes", "swap/used_ratio", "disk/free_bytes", "disk/used_ratio", "disk/busy_ratio"),
    *("cgroup/memory_used_bytes", "cgroup/memory_limit_bytes", "cgroup/throttled_ratio", "pressure/io_full_ratio"),
    *("pressure/io_some_ratio", "pressure/memory_full_ratio", "pressure/memory_some_ratio", "pressure/cpu_some_ratio"),
    *("process/*/tree_memory_bytes", "process/*/cpu_ratio", "gpu/*/memory_busy_ratio", "gpu/*/sm_clock_hertz"),
    *("gpu/mean_utilization_ratio", "gpu/min_utilization_ratio", "gpu/max_temperature_celsius", "gpu/sum_power_watts"),
    *(f"gpu/*/throttle_{why}" for why in ("hw_slowdown", "sw_thermal", "hw_thermal", "power_brake", "power_cap")),
)
"""Names of samplers that rules use: samplers declare them at run time, the vocabulary has the fixed names."""


def is_known(name: str, recorded: Iterable[str] = ()) -> bool:
    """Return whether a name or pattern is in the vocabulary, of a sampler, or recorded."""
    if metric_of(name) is not None or name in SAMPLED or name.startswith(("phase/", "stepscope/")):
        return True
    return any(matches(pattern, name) for pattern in SAMPLED) or any(matches(name, other) for other in recorded)
