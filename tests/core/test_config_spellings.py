"""The spellings of the documents: what each word does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepscope.core.config import load
from stepscope.core.errors import UsageError

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"
MIB = 1 << 20


def seed_blocks(number: str) -> list[str]:
    """Return the YAML blocks of one document."""
    found = sorted(SEEDS.glob(f"{number}_*.txt"))
    if not found:
        pytest.skip(f"the documents are not beside the repository: {SEEDS}")
    return re.findall(r"```yaml\n(.*?)```", found[0].read_text(encoding="utf-8"), re.DOTALL)


def set_by(text: str, folder: Path) -> dict[str, object]:
    """Return what a file sets or implies, without the defaults."""
    path = folder / "seed.yaml"
    path.write_text(text, encoding="utf-8")
    config = load([path])
    return {key: config.get(key) for key in config.sources}


BASIC = {
    "recorder.enabled": True,
    "samplers.interval": 30.0,
    "web.metrics": ("training_loss", "gpu_memory", "cpu_usage", "training_speed"),
    "exporters.tensorboard.enabled": True,
    "web.enabled": True,
    "exporters.prometheus.enabled": False,
    "alerting.enabled": True,
    "alerting.email": True,
    "alerting.thresholds.loss_increase": 0.1,
    "alerting.thresholds.gpu_memory": 0.9,
    "alerting.thresholds.cpu_usage": 0.95,
}
ADVANCED = BASIC | {
    "samplers.interval": 10.0,
    "web.metrics": (*BASIC["web.metrics"], "model_parameters", "gradient_norms", "learning_rate"),
    "recorder.watch.parameters": True,
    "recorder.watch.gradients": True,
    "exporters.prometheus.enabled": True,
    "exporters.grafana.enabled": True,
    "alerting.slack": True,
    "alerting.thresholds.loss_increase": 0.05,
    "alerting.thresholds.gpu_memory": 0.85,
    "alerting.thresholds.cpu_usage": 0.9,
    "alerting.thresholds.training_speed": 0.7,
    "watcher.analysis.trend": True,
    "watcher.analysis.anomaly": True,
    "watcher.analysis.regression": True,
}
FLAT = [
    {
        "web.enabled": True,
        "web.host": "127.0.0.1",
        "web.port": 8080,
        "alerting.enabled": True,
        "alerting.thresholds.cpu_usage": 0.85,
        "alerting.thresholds.memory_usage": 0.8,
    },
    {"web.enabled": True, "web.host": "0.0.0.0", "web.port": 8080, "web.refresh_interval": 5.0},
    {
        "alerting.thresholds.cpu_usage": 0.9,
        "alerting.thresholds.memory_usage": 0.85,
        "alerting.thresholds.grad_norm_exploded": 10.0,
        "alerting.thresholds.learning_rate_too_low": 1e-8,
    },
    {"recorder.high_frequency": False, "recorder.ring_bytes": MIB // 4, "watcher.sync_interval": 10.0},
    {"recorder.ring_bytes": MIB // 4, "watcher.sync_interval": 5.0},
    {
        "recorder.high_frequency": True,
        "watcher.batch": True,
        "recorder.max_events_per_second": 1000,
        "recorder.ring_bytes": 8 * MIB,
        "watcher.drain_interval": 0.05,
    },
    {"recorder.memory_map": True, "store.auto_cleanup": True, "store.max_size_gb": 100.0},
]


@pytest.mark.promise("S0-074", "S0-076", "X-08")
def test_the_monitoring_root_loads_as_written(tmp_path):
    """Both examples of the first document set these keys, and no others."""
    assert [set_by(block, tmp_path) for block in seed_blocks("000")] == [BASIC, ADVANCED]


@pytest.mark.promise("S1-056", "S1-059", "S1-060", "X-08")
def test_the_flat_sections_load_as_written(tmp_path):
    """Every example of the second document sets these keys, and no others."""
    assert [set_by(block, tmp_path) for block in seed_blocks("001")] == FLAT


@pytest.mark.promise("X-08")
def test_the_callback_groups_load_as_written(tmp_path):
    """The examples of the fourth document ask for what is the default anyway."""
    defaults = load().values
    found = [set_by(block, tmp_path) for block in seed_blocks("003")]
    different = {key: value for values in found for key, value in values.items() if value != defaults[key]}
    assert different == {}
    assert [len(values) for values in found] == [4, 10, 13]


@pytest.mark.parametrize(
    ("settings", "path", "value"),
    [
        ({"save_dir": "./logs"}, "store.dir", "./logs"),
        ({"save_dir": Path("logs")}, "store.dir", "logs"),
        ({"enable_dashboard": True}, "web.enabled", True),
        ({"dashboard_port": 8081}, "web.port", 8081),
        ({"enable_alerts": False}, "alerting.enabled", False),
        ({"tensorboard_dir": "./tb"}, "exporters.tensorboard.dir", "./tb"),
        ({"tensorboard_dir": "./tb"}, "exporters.tensorboard.enabled", True),
        ({"enable_performance_monitor": False}, "samplers.enabled", False),
        ({"track_gradients": True}, "recorder.watch.gradients", True),
        ({"gradient_monitoring": {"track_layers": ["encoder"]}}, "recorder.watch.layers", ("encoder",)),
        ({"distributed_monitoring": True}, "recorder.track_rank_0_only", False),
        ({"distributed_monitoring": False}, "recorder.track_rank_0_only", True),
        ({"distributed_monitoring": True, "track_rank_0_only": True}, "recorder.track_rank_0_only", True),
        ({"distributed_monitoring": False, "track_rank_0_only": False}, "recorder.track_rank_0_only", False),
    ],
)
def test_words_at_the_root_set_their_key(settings, path, value):
    """Each flat word of a dict configuration has its effect."""
    assert load(settings=settings).get(path) == value


@pytest.mark.parametrize(
    ("tuning", "path", "value"),
    [
        ({"buffer_size": 1000}, "recorder.ring_bytes", MIB // 4),
        ({"buffer_size": 10_000}, "recorder.ring_bytes", 2 * MIB),
        ({"buffer_size": 10**9}, "recorder.ring_bytes", 64 * MIB),
        ({"flush_interval": 10.0}, "watcher.sync_interval", 10.0),
        ({"high_frequency_mode": True}, "recorder.ring_bytes", 8 * MIB),
        ({"high_frequency_mode": True}, "watcher.drain_interval", 0.05),
        ({"high_frequency_mode": True, "buffer_size": 10_000}, "recorder.ring_bytes", 2 * MIB),
        ({"batch_metrics_collection": True}, "watcher.drain_interval", 0.1),
        ({"batch_metrics_collection": False}, "watcher.drain_interval", 0.02),
        ({"batch_metrics_collection": False, "high_frequency_mode": True}, "watcher.drain_interval", 0.02),
        ({"max_events_per_second": 5}, "recorder.max_events_per_second", 5),
        ({"use_memory_maps": False}, "recorder.memory_map", False),
        ({"auto_cleanup": True}, "store.auto_cleanup", True),
        ({"max_database_size_gb": 100.0}, "store.max_size_gb", 100.0),
    ],
)
def test_tuning_words_set_their_key(tuning, path, value):
    """Each word of `performance_tuning` changes the setting that its part reads."""
    assert load(settings={"performance_tuning": tuning}).get(path) == value


@pytest.mark.promise("S1-060")
@pytest.mark.parametrize("reverse", [False, True])
def test_metrics_collection_wins_over_performance_tuning(reverse):
    """Where both sections set the same key, the order in the file does not matter."""
    sections = {"performance_tuning": {"flush_interval": 10.0}, "metrics_collection": {"flush_interval": 5.0}}
    config = load(settings=dict(sorted(sections.items(), reverse=reverse)))
    assert config.get("watcher.sync_interval") == 5.0
    assert "overrides 'performance_tuning.flush_interval'" in config.notices[0]


def test_a_later_source_takes_a_mode_back(tmp_path):
    """A mode that a file sets and a keyword resets leaves no trace."""
    path = tmp_path / "x.yaml"
    path.write_text("performance_tuning: {high_frequency_mode: true}")
    assert load([path], {"recorder__high_frequency": False}).get("recorder.ring_bytes") == 4 * MIB


@pytest.mark.promise("X-08")
@pytest.mark.parametrize(
    "settings",
    [
        {"callbacks": {"profiler": {"profile_steps": 50}}},
        {"callbacks": {"profiler": {"_target_": "stepscope.callbacks.ProfilerCallback", "profile_steps": 50}}},
        {"callbacks": {"mine": {"_target_": "a.b.ProfilerCallback", "profile_steps": 50}}},
        {"profiler": {"_target_": "a.b.ProfilerCallback", "profile_steps": 50}},
        {"profiler": {"profile_steps": 50}},
        {"_target_": "a.b.ProfilerCallback", "profile_steps": 50},
        {"callbacks.profiler.profile_steps": 50},
    ],
)
def test_callback_groups_have_three_forms(settings):
    """Below `callbacks`, alone, or as the body of one: the same setting."""
    assert list(load(settings=settings).sources) == ["callbacks.profiler.profile_steps"]


def test_a_foreign_callback_is_refused_once():
    """A `_target_` that is not ours is named; its options add no noise."""
    with pytest.raises(UsageError, match=r"is 'os\.system', not a callback of Stepscope; use one of Throughput"):
        load(settings={"callbacks": {"x": {"_target_": "os.system", "a": 1, "b": 2}}})


@pytest.mark.promise("X-05")
@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"monitoring": {"alerting": {"thresholds": {"cpu_usage": 90}}}}, "alerting.thresholds.cpu_usage"),
        ({"alert_system": {"thresholds": {"cpu_usage_percent": 0.9}}}, "alerting.thresholds.cpu_usage"),
        ({"resource_monitor": {"memory_threshold": "90%"}}, "alerting.thresholds.memory_usage"),
        ({"alert_system": {"thresholds": {"memory_usage_percent": 90.0}}}, "alerting.thresholds.memory_usage"),
    ],
)
def test_thresholds_are_fractions_or_percents_in_every_spelling(settings, path):
    """0.9, 90 and 90% are the same threshold, whichever document the key is from."""
    assert load(settings=settings).get(path) == 0.9


@pytest.mark.promise("X-05")
def test_a_rise_of_one_and_a_half_is_150_percent():
    """What may exceed 1 is a fraction as it stands, in every spelling."""
    for settings in (
        {"alerting.thresholds.loss_increase": 1.5},
        {"monitoring": {"alerting": {"thresholds": {"loss_increase": "150%"}}}},
    ):
        assert load(settings=settings).get("alerting.thresholds.loss_increase") == 1.5


@pytest.mark.promise("X-05")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu_usage", 1.5),
        ("cpu_usage", 101),
        ("loss_increase", 10),
        ("gpu_temperature", 0.8),
        ("training_speed", 1),
        ("plateau_points", 2),
    ],
)
def test_a_threshold_that_cannot_be_meant_is_refused(name, value):
    """With the key, the value and what would be right; nothing is scaled silently."""
    with pytest.raises(UsageError, match=rf"'alerting.thresholds.{name}' is {value}, .*; .*default"):
        load(settings={f"alerting.thresholds.{name}": value})
