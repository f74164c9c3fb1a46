from __future__ import annotations

import numpy as np

from stepscope.cli.text.machine_lines import end_lines, machine_lines
from stepscope.cli.text.terminal import Paint

PLAIN = Paint()


def figure(mean, most=None):
    return {"mean": mean, "min": mean, "max": mean if most is None else most, "last": mean}


def lines(metrics, absent=()):
    return list(machine_lines({"metrics": metrics, "absent": dict(absent)}, 120, PLAIN))


def test_a_line_per_source():
    """Each source has one line with what was in use, on average and at most, in units for people."""
    found = lines(
        {
            "cpu/usage_ratio": figure(0.5, 0.98),
            "memory/used_ratio": figure(0.25, 0.5),
            "gpu/0/utilization_ratio": figure(0.87, 1.0),
            "gpu/0/memory_used_bytes": figure(2.0**34),
            "gpu/0/memory_total_bytes": figure(3 * 2.0**33),
            "gpu/0/temperature_celsius": figure(71.5),
            "gpu/mean_utilization_ratio": figure(0.87),
        }
    )
    assert found == [
        "  cpu       50 % in use (most 98 %)",
        "  memory    25 % in use (most 50 %)",
        "  gpu 0     87 % in use (most 100 %), 16 GiB memory (most 16 GiB) of 24 GiB, at 71.5 °C",
    ]


def test_what_does_not_matter_is_not_said():
    """Waiting for disks, stolen and throttled time are told only where there was any."""
    quiet = lines({"cpu/usage_ratio": figure(0.5), "cpu/iowait_ratio": figure(0.0, 0.001)})
    loud = lines({"cpu/usage_ratio": figure(0.5), "cpu/iowait_ratio": figure(0.1, 0.4)})
    assert "waiting" not in quiet[0]
    assert "10 % waiting for disks (most 40 %)" in loud[0]


def test_no_gpu_and_why():
    """A machine without a GPU says why there is nothing to see; one with a GPU does not."""
    why = {"gpu": "no driver; install one"}
    assert lines({}, why) == ["  no gpu    no driver; install one"]
    assert "no driver" not in "".join(lines({"gpu/0/power_watts": figure(1.0)}, why))


def test_last_steps():
    """The end shows the last steps with their longest phases, what was logged, and values that are not finite."""
    steps = [
        {"step": 7, "seconds": 0.5, "phases": {"data": 0.4, "forward": 0.1, "none": 0.0}, "loss": 1.5},
        {"step": 8, "seconds": 0.5, "phases": {"data": 0.4, "forward": 0.1}, "loss": np.nan},
    ]
    event = {"kind": "hung", "time": 3600.0, "rank": 0, "step": 8, "text": "no step for 10 s"}
    facts = {"events": [event], "first_error": None, "traceback": ["ValueError: no"], "steps": steps}
    shown = list(end_lines(facts, 100, PLAIN))
    assert shown[0] == "  01:00:00 UTC  hung, rank 0, step 8: no step for 10 s"
    assert shown[1] == "    ValueError: no"
    assert shown[2].split() == ["step", "took", "data", "forward", "loss"]
    assert shown[4].split() == ["8", "500", "ms", "400", "ms", "100", "ms", "NaN"]


def test_an_event_of_a_watcher_names_no_rank():
    """A watcher has a number below 0 in place of a rank, one for each node: it is not shown."""
    event = {"kind": "notification", "time": 0.0, "rank": -2, "step": None, "text": "mail: sent"}
    facts = {"events": [event, {**event, "rank": None}], "first_error": None, "traceback": [], "steps": []}
    assert set(end_lines(facts, 100, PLAIN)) == {"  00:00:00 UTC  notification: mail: sent"}
