"""What the resource callback's options change in the watcher's rules."""

from __future__ import annotations

import pytest

from stepscope.alerts.rules.profiles import changes_of, profile
from tests.alerts.rows import Rig


@pytest.mark.promise("S3-040", "S3-041")
def test_the_options_change_the_rules_of_the_watcher():
    """Options that differ from their defaults take the place of the profile's; the others change nothing."""
    rig = Rig(*profile("strict"))
    rig.event("alert_options", memory_threshold=0.99, alert_io_bottleneck=False, gpu_util_threshold=0.5)
    rules = {rule.name: rule.when for rule in rig.engine.rules}
    assert rules["memory_pressure"] == "memory/used_ratio > 0.99"
    assert rules["gpu_underused"].endswith("< 0.7")
    assert not {"io_wait", "io_pressure"} & set(rules)
    assert rig.machine(120, memory__used_ratio=0.95) == []


@pytest.mark.parametrize(
    "options", [{}, {"gpu_util_threshold": 0.5}, {"memory_threshold": "x"}, {"io_wait_threshold": 7}]
)
def test_defaults_and_nonsense_change_nothing(options):
    """What nobody changed, or is no share, leaves the rules as they are."""
    assert changes_of(options) == ({}, set())
