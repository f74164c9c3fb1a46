from __future__ import annotations

import pytest

from stepscope.integrations.lightning.resource_alerts import ResourceAlerts

OPTIONS = {
    "alert_gpu_underutilization": True,
    "alert_memory_pressure": True,
    "alert_io_bottleneck": True,
    "gpu_util_threshold": 0.5,
    "memory_threshold": 0.9,
    "io_wait_threshold": 0.3,
}


def told(alerts, value, times, name="gpu/0/utilization_ratio"):
    return [one.text for _ in range(times) for one in alerts.look({name: value})]


@pytest.mark.promise("S3-035", "S3-044", "S3-046")
def test_what_lasts_is_told_once_in_the_documents_words():
    """After 30 batches, and not again before it was well by a margin."""
    alerts = ResourceAlerts(OPTIONS)
    assert told(alerts, 0.4, 29) == []
    assert told(alerts, 0.4, 100) == ["GPU utilization below 50% for 30 batches"]
    assert told(alerts, 0.51, 1) == []
    assert told(alerts, 0.4, 60) == []  # it was hardly better
    assert told(alerts, 0.9, 1) == []
    assert told(alerts, 0.4, 30) == ["GPU utilization below 50% for 30 batches"]


@pytest.mark.promise("S3-036", "S3-037", "S3-038", "S3-041")
@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("memory/used_ratio", 0.95, "memory usage above 90% for 2 batches"),
        ("cpu/iowait_ratio", 0.4, "time waiting on disk above 30% for 2 batches"),
        ("gpu/0/temperature_celsius", 85.0, "GPU temperature above 80°C for 2 batches"),
        ("gpu/1/utilization_ratio", 0.1, "GPU utilization below 50% for 2 batches"),
    ],
)
def test_each_has_its_threshold(name, value, text):
    """And the number of batches is a parameter."""
    assert told(ResourceAlerts(OPTIONS, batches=2), value, 3, name) == [text]


@pytest.mark.promise("S3-040")
def test_options_switch_alerts_off():
    """Each of them by its own."""
    off = {**OPTIONS, **dict.fromkeys([name for name in OPTIONS if name.startswith("alert_")], False)}
    alerts = ResourceAlerts(off, batches=1)
    assert alerts.look({"gpu/0/utilization_ratio": 0.0, "memory/used_ratio": 1.0, "cpu/iowait_ratio": 1.0}) == []


def test_one_sample_is_no_extended_period():
    """Batches that are faster than the samples do not count one of them thirty times."""
    alerts, sample = ResourceAlerts(OPTIONS), {"gpu/0/utilization_ratio": 0.1}
    assert [one for _ in range(100) for one in alerts.look(sample)] == []
    assert told(alerts, 0.1, 2) == ["GPU utilization below 50% for 102 batches"]


def test_several_gpus_are_called_by_their_numbers():
    """As they may differ."""
    alerts = ResourceAlerts(OPTIONS, batches=1)
    (one,) = alerts.look({"gpu/0/utilization_ratio": 0.1, "gpu/1/utilization_ratio": 0.9, "gpu/mean_x": 0.0})
    assert one.text == "GPU 0 utilization below 50% for 1 batches"
