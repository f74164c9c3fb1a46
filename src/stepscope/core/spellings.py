"""Compatible spellings of settings, mapped to Stepscope's own keys.

Three exist: a `monitoring:` root; flat sections with words at the root; and groups of callbacks as Hydra
has them (`callbacks:`, or the groups alone, or a file that is the body of one). In one file our own spelling
wins over these, and of two aliases for one key the later in this table wins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.kinds import MIB, parse_integer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

ROW_BYTES = 128
"""Ring memory, in bytes, for one row of a `buffer_size`."""

CALLBACKS: Mapping[str, str] = {
    "ThroughputMonitorCallback": "throughput_monitor",
    "ProfilerCallback": "profiler",
    "ResourceMonitorCallback": "resource_monitor",
}
"""Class name of each callback, and the name of its group."""


class KeyAlias(NamedTuple):
    """Another accepted spelling of a key."""

    path: str
    target: str
    convert: Callable[[object], object] | None = None
    """Turn the value of this spelling into one for the target, or raise ValueError."""
    note: str = ""
    """The effect of the conversion, for the documentation."""


def rows_to_bytes(value: object) -> int:
    """Return the ring size in bytes for a buffer of that many rows: a power of two from 256 KiB to 64 MiB."""
    rows = parse_integer(value)
    if rows < 1:
        raise ValueError("not a positive number of rows")
    return min(max(1 << (rows * ROW_BYTES - 1).bit_length(), MIB // 4), 64 * MIB)


def _renamed(prefix: str, names: Mapping[str, str]) -> tuple[KeyAlias, ...]:
    return tuple(KeyAlias(f"{prefix}{name}", target) for name, target in names.items())


def _buffer(section: str) -> Iterable[KeyAlias]:
    note = f"rows x {ROW_BYTES} bytes, up to a power of two, 256 KiB to 64 MiB"
    yield KeyAlias(f"{section}.buffer_size", "recorder.ring_bytes", rows_to_bytes, note)
    yield KeyAlias(f"{section}.flush_interval", "watcher.sync_interval", None, "fdatasync; rows are written sooner")


MONITORING_ROOT = _renamed(
    "monitoring.",
    {
        "enabled": "recorder.enabled",
        "interval": "samplers.interval",
        "metrics": "web.metrics",
        "visualization.tensorboard": "exporters.tensorboard.enabled",
        "visualization.dashboard": "web.enabled",
        "visualization.prometheus": "exporters.prometheus.enabled",
        "visualization.grafana": "exporters.grafana.enabled",
        "alerting.enabled": "alerting.enabled",
        "alerting.email_notifications": "alerting.email",
        "alerting.slack_notifications": "alerting.slack",
        "alerting.thresholds.loss_increase": "alerting.thresholds.loss_increase",
        "alerting.thresholds.gpu_memory": "alerting.thresholds.gpu_memory",
        "alerting.thresholds.cpu_usage": "alerting.thresholds.cpu_usage",
        "alerting.thresholds.training_speed": "alerting.thresholds.training_speed",
        "analysis.trend_analysis": "watcher.analysis.trend",
        "analysis.anomaly_detection": "watcher.analysis.anomaly",
        "analysis.performance_regression": "watcher.analysis.regression",
    },
)

FLAT_SECTIONS = (
    *_renamed(
        "",
        {
            "save_dir": "store.dir",
            "enable_dashboard": "web.enabled",
            "dashboard_port": "web.port",
            "enable_alerts": "alerting.enabled",
            "tensorboard_dir": "exporters.tensorboard.dir",
            "enable_performance_monitor": "samplers.enabled",
            "track_gradients": "recorder.watch.gradients",
            "gradient_monitoring.track_layers": "recorder.watch.layers",
            "distributed_monitoring": "recorder.distributed",
            "track_rank_0_only": "recorder.track_rank_0_only",
            "dashboard.enabled": "web.enabled",
            "dashboard.host": "web.host",
            "dashboard.port": "web.port",
            "dashboard.refresh_interval": "web.refresh_interval",
            "alert_system.enabled": "alerting.enabled",
            "alert_system.thresholds.cpu_usage_percent": "alerting.thresholds.cpu_usage",
            "alert_system.thresholds.memory_usage_percent": "alerting.thresholds.memory_usage",
            "alert_system.thresholds.grad_norm_exploded": "alerting.thresholds.grad_norm_exploded",
            "alert_system.thresholds.learning_rate_too_low": "alerting.thresholds.learning_rate_too_low",
            "performance_tuning.high_frequency_mode": "recorder.high_frequency",
            "performance_tuning.batch_metrics_collection": "watcher.batch",
            "performance_tuning.max_events_per_second": "recorder.max_events_per_second",
            "performance_tuning.use_memory_maps": "recorder.memory_map",
            "performance_tuning.auto_cleanup": "store.auto_cleanup",
            "performance_tuning.max_database_size_gb": "store.max_size_gb",
        },
    ),
    *_buffer("performance_tuning"),
    *_buffer("metrics_collection"),
)

CALLBACK_GROUPS = _renamed(
    "callbacks.resource_monitor.",
    {
        "gpu_monitoring": "samplers.gpu",
        "cpu_monitoring": "samplers.cpu",
        "io_monitoring": "samplers.io",
        "alert_gpu_underutilization": "alerting.gpu_underutilization",
        "alert_memory_pressure": "alerting.memory_pressure",
        "alert_io_bottleneck": "alerting.io_bottleneck",
        "gpu_util_threshold": "alerting.thresholds.gpu_utilization",
        "memory_threshold": "alerting.thresholds.memory_usage",
        "io_wait_threshold": "alerting.thresholds.io_wait",
        "export_timeseries": "exporters.csv.enabled",
        "timeseries_path": "exporters.csv.dir",
    },
)

ALIASES = {alias.path: alias for alias in (*MONITORING_ROOT, *FLAT_SECTIONS, *CALLBACK_GROUPS)}
