"""The alert sections of the documents' configurations as written: what they switch, which thresholds they set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepscope.alerts.delivery.channel import channels_of
from stepscope.alerts.rules.profiles import rules_of
from stepscope.core.config import load

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"


def alert_blocks(number, word):
    """Return the YAML blocks of a document that have an alert section."""
    found = sorted(SEEDS.glob(f"{number}_*.txt"))
    if not found:
        pytest.skip(f"the documents are not beside the repository: {SEEDS}")
    blocks = re.findall(r"```yaml\n(.*?)```", found[0].read_text(encoding="utf-8"), re.DOTALL)
    return [block for block in blocks if word in block]


def loaded(text, folder):
    """Return what a configuration sets of the alerts, and what is said about it."""
    path = folder / "seed.yaml"
    path.write_text(text, encoding="utf-8")
    config = load([path])
    return {key: config.get(key) for key in config.sources if key.startswith("alerting.")}, config.notices


def conditions(settings):
    """Return the conditions of the rules, by name."""
    rules, problems = rules_of(settings)
    assert problems == []
    return {rule.name: str(rule.facts().get("when") or rule.facts().get("options")) for rule in rules}


@pytest.mark.promise("S0-077", "S0-078", "X-10")
def test_both_examples_of_the_first_document_set_rules(tmp_path):
    """Thresholds reach the rules; mail and Slack that are asked for and have no channel are told at the start."""
    basic, advanced = (loaded(block, tmp_path) for block in alert_blocks("000", "alerting:"))
    for (settings, notices), numbers in ((basic, ("0.1", "0.9", "0.95")), (advanced, ("0.05", "0.85", "0.9"))):
        assert not any("section 'alerting'" in notice for notice in notices)
        found = conditions(settings)
        for rule, number in zip(("loss_increase", "gpu_memory", "cpu_usage"), numbers, strict=True):
            assert re.search(rf"\b{re.escape(number)}\b", found[rule]), (rule, found[rule])
    assert [problem.partition(":")[0] for problem in channels_of(basic[0])[1]] == ["cannot send mail"]
    assert len(channels_of(advanced[0])[1]) == 2


@pytest.mark.promise("S1-055", "S1-063", "S1-064", "S1-065", "X-10")
def test_the_examples_of_the_second_document_set_rules(tmp_path):
    """Percentages are fractions, and 1e-8 is a number."""
    found = [loaded(block, tmp_path)[0] for block in alert_blocks("001", "alert_system:")]
    assert len(found) == 2
    first, second = (conditions(settings) for settings in found)
    assert "0.85" in first["cpu_usage"]
    assert "0.8" in first["memory_pressure"]
    assert "0.9" in second["cpu_usage"]
    assert "0.85" in second["memory_pressure"]
    assert "10" in second["gradient_exploding"]
    assert "1e-08" in second["learning_rate_too_low"]


@pytest.mark.promise("S3-040", "S3-041")
def test_the_options_of_the_resource_callback_set_rules(tmp_path):
    """As its group of the configuration spells them."""
    text = "resource_monitor: {alert_io_bottleneck: false, gpu_util_threshold: 0.6, memory_threshold: 0.7}"
    found = conditions(loaded(text, tmp_path)[0])
    assert "0.6" in found["gpu_underused"]
    assert "0.7" in found["memory_pressure"]
    assert "io_wait" not in found
