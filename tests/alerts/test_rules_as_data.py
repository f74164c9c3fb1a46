"""Rules as data: mappings, files and configurations; every mistake is found at load and named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.alerts.rules.builtin import THRESHOLDS, rules
from stepscope.alerts.rules.expression import POINTS, STEPS, TIME, RuleWindow
from stepscope.alerts.rules.profiles import PROFILES, profile, rules_of
from stepscope.alerts.rules.rule import read_rule, rule_of
from stepscope.alerts.rules.rules_file import load_rules, misspelt
from stepscope.core.config import load
from stepscope.core.errors import UsageError

GOOD = {"name": "high", "when": "loss > 10"}


def test_every_key_is_read():
    """A rule has everything that people want to say."""
    rule = rule_of(
        {
            **GOOD,
            "over": "max",
            "for": "20 steps",
            "keep": "5min",
            "hysteresis": 0.1,
            "cooldown": "10m",
            "severity": "critical",
            "escalate": {"after": "1h"},
            "message": "loss {loss:.2f}",
            "remedy": "stop",
            "labels": {"team": "a"},
            "actions": ["stop", {"profile": {"steps": 20}}],
        }
    )
    assert (rule.lasting, rule.keep, rule.cooldown) == (RuleWindow(20, STEPS), RuleWindow(300, TIME), 600.0)
    assert rule.escalate is not None
    assert rule.escalate.severity == "critical"
    assert rule.actions == ("stop", {"profile": {"steps": 20}})
    assert rule_of({**GOOD, "for": "5 points"}).lasting == RuleWindow(5, POINTS)
    assert rule_of({**GOOD, "cooldown_seconds": 30}).cooldown == 30.0


@pytest.mark.parametrize("name", PROFILES)
def test_a_rule_is_the_same_after_a_round_trip(name):
    """Every built-in rule, written as plain data and read again, is the same rule."""
    for rule in profile(name):
        assert rule_of(rule.facts()) == rule


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": ""}, "its name is"),
        ({"name": "../x"}, "its name is"),
        ({"when": ""}, "exactly one of"),
        ({"detect": "spike"}, "exactly one of"),
        ({"whem": "x"}, "did you mean 'when'"),
        ({"severity": "loud"}, "not one of info, warning, critical"),
        ({"over": "median"}, "not one of each, max"),
        ({"for": "soon"}, "not a span"),
        ({"cooldown": -1}, "negative"),
        ({"hysteresis": "much"}, "not a number"),
        ({"when": "loss >"}, "ends too early"),
        ({"when": "value > 1"}, "the rule has no 'metric'"),
        ({"when": "loss > 1 and loss < 5", "hysteresis": 0.1}, "no single comparison"),
        ({"clear": "loss"}, "not a condition"),
        ({"labels": ["a"]}, "not a mapping"),
        ({"escalate": {"after": "x"}}, "escalate"),
        ({"metric": 5}, "not a text or a list"),
    ],
)
def test_each_mistake_is_named(change, said):
    """What is wrong with a rule is said with the key and the right form."""
    with pytest.raises(UsageError, match=said):
        rule_of({**GOOD, **change})


def test_detectors_have_their_own_mistakes():
    """An unknown detector or option is found."""
    with pytest.raises(UsageError, match="not one of spike, rise"):
        rule_of({"name": "a", "detect": "magic", "metric": "loss"})
    with pytest.raises(UsageError, match="has no option 'size'"):
        rule_of({"name": "a", "detect": "plateau", "options": {"size": 5}})
    with pytest.raises(UsageError, match="needs a 'metric'"):
        rule_of({"name": "a", "detect": "anomaly"})


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["name", "when", "detect", "event", "metric", "where", "for", "cooldown", "escalate", "labels", "x"]
)


@given(st.dictionaries(KEYS, PLAIN, max_size=8) | PLAIN)
def test_any_data_is_a_rule_or_is_refused(given_data):
    """Whatever a file holds, reading gives a rule or sentences, and never anything else."""
    rule, problems = read_rule(given_data)
    assert (rule is None) == bool(problems)
    assert all(isinstance(problem, str) for problem in problems)


def test_a_file_is_a_list_or_has_the_key_rules(tmp_path):
    """Both forms of a file are read, comments and all."""
    plain = tmp_path / "plain.yaml"
    plain.write_text(
        "# mine\n- name: high\n  when: loss > 10\n\n- name: hot\n  when: |\n    gpu/*/temperature_celsius\n    > 80\n"
    )
    keyed = tmp_path / "keyed.yaml"
    keyed.write_text("rules:\n  - {name: high, when: loss > 10}\n")
    assert [rule.name for rule in load_rules(plain)] == ["high", "hot"]
    assert [rule.name for rule in load_rules(keyed)] == ["high"]


def test_a_file_tells_all_its_problems(tmp_path):
    """Every wrong rule of a file is named at once, and a misspelt metric is a problem with a suggestion."""
    path = tmp_path / "rules.yaml"
    path.write_text(
        "- {name: a, when: los > 1}\n- {name: b}\n- {name: c, when: grad_nrm > 1}\n- {name: c, when: loss > 1}\n"
    )
    with pytest.raises(UsageError) as caught:
        load_rules(path)
    text = str(caught.value)
    assert "exactly one of" in text
    assert "no metric is called 'grad_nrm'; did you mean 'grad_norm'?" in text
    assert "'c' is there twice" in text


@pytest.mark.parametrize("text", ["", "5", "a: [", "- 5", "rules: 7", "other: 1\nrules: []"])
def test_a_file_that_is_none_is_refused(tmp_path, text):
    """A file that holds no rules is an error with a remedy."""
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(UsageError):
        load_rules(path)


def test_a_metric_of_ones_own_is_no_mistake():
    """A name that resembles nothing is the user's own; next to recorded names it must be one of them."""
    rule = rule_of({"name": "own", "when": "my_reward < 1"})
    assert misspelt(rule) == []
    assert misspelt(rule, ["my_reward", "loss"]) == []
    assert misspelt(rule, ["my_rewards"]) == ["rule 'own': no metric is called 'my_reward'; did you mean 'my_rewards'?"]
    assert "these runs have no metric" in misspelt(rule, ["loss"])[0]
    assert "to divide write 'loss / 2'" in misspelt(rule_of({"name": "half", "when": "loss/2 > 1"}))[0]


@pytest.mark.promise("X-10")
def test_profiles_have_the_thresholds_of_their_documents():
    """Each document's thresholds are a profile; all have the same rules, but for `quiet`."""

    def has(name, text):
        return any(text in rule.when for rule in profile(name))

    for name, rise in (("performance-monitoring", 0.1), ("performance-monitoring-advanced", 0.05)):
        assert next(rule for rule in profile(name) if rule.name == "loss_increase").options == {"rise": rise}
    assert has("performance-monitoring", "memory_total_bytes > 0.9")
    assert has("performance-monitoring-advanced", "memory_total_bytes > 0.85")
    assert has("training-monitor", "cpu/usage_ratio, 60s) > 0.85")
    assert has("training-monitor", "memory/used_ratio > 0.8")
    assert has("gpu-monitor", "temperature_celsius > 80")
    assert has("resource-monitor", "iowait_ratio, 60s) > 0.3")
    assert {rule.severity for rule in profile("quiet")} <= {"critical", "warning"}
    assert len(profile("quiet")) < len(profile("default")) == len(profile("strict"))


@pytest.mark.promise("S0-078", "S1-055", "S3-041")
def test_thresholds_of_the_settings_take_their_place():
    """A threshold that is set wins over the profile's; none or 0 is the profile's."""
    found, problems = rules_of({"alerting.thresholds.cpu_usage": 0.5, "alerting.thresholds.gpu_memory": 0})
    by_name = {rule.name: rule for rule in found}
    assert not problems
    assert "> 0.5" in by_name["cpu_usage"].when
    assert "> 0.95" in by_name["gpu_memory"].when
    for name in THRESHOLDS:
        assert rules({name: 0.123}) != rules(), name


@pytest.mark.promise("S3-040")
def test_the_resource_callbacks_switches_turn_rules_off():
    """`alert_gpu_underutilization: false` and its like turn these rules off."""
    names = {rule.name for rule in rules_of({})[0]}
    off = {"alerting.gpu_underutilization": False, "alerting.memory_pressure": False, "alerting.io_bottleneck": False}
    left = {rule.name for rule in rules_of(off)[0]}
    assert names - left == {"gpu_underused", "memory_pressure", "io_wait", "io_pressure"}
    assert rules_of({"alerting.enabled": False}) == ([], [])


def test_rules_of_ones_own_join_the_profile(tmp_path):
    """Own rules are added, a built-in one can be changed or turned off by its name, a path names a file."""
    path = tmp_path / "own.yaml"
    path.write_text("- {name: filed, when: loss > 3}\n")
    own = ({"name": "cpu_usage", "enabled": False}, {"name": "loss_spike", "severity": "critical"}, GOOD, str(path))
    found, problems = rules_of({"alerting.rules": own})
    by_name = {rule.name: rule for rule in found}
    assert not problems
    assert "cpu_usage" not in by_name
    assert (by_name["loss_spike"].severity, by_name["loss_spike"].detect) == ("critical", "spike")
    assert {"high", "filed"} <= set(by_name)


def test_one_wrong_rule_does_not_cost_the_others(tmp_path):
    """What is wrong in a configuration is said; everything else holds."""
    settings = {
        "alerting.profile": "louder",
        "alerting.rules": ({"name": "bad"}, GOOD, str(tmp_path / "none.yaml")),
        "alerting.thresholds.magic": 1.0,
        "alerting.thresholds.cpu_usage": "high",
    }
    found, problems = rules_of(settings)
    assert {"high", "death"} <= {rule.name for rule in found}
    assert len(problems) == 5


@pytest.mark.promise("X-05")
@pytest.mark.parametrize("written", [0.85, 85, "85%"])
def test_fractions_and_percents_mean_the_same(written):
    """A threshold may be a fraction or a percentage."""
    config = load(settings={"alerting.thresholds.cpu_usage": written})
    values = {path: config.values[path] for path in config.sources}
    rule = next(rule for rule in rules_of(values)[0] if rule.name == "cpu_usage")
    assert rule.when.endswith("> 0.85")
