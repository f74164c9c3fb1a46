"""The panels of the Grafana dashboard, as data: what each asks of Prometheus, and what its figure means."""

from __future__ import annotations

from typing import Any, NamedTuple

WIDTH = 24
"""Columns of Grafana's grid."""

TRAINER = 'project=~"$project", run=~"$run", rank=~"$rank"'
MACHINE = 'project=~"$project", run=~"$run"'
GPU = f'{MACHINE}, gpu_id=~"$gpu"'

HOT = ({"color": "green", "value": None}, {"color": "orange", "value": 75}, {"color": "red", "value": 80})
"""Steps of the temperature gauge in °C; the built-in alert fires at 80."""
FULL = ({"color": "green", "value": None}, {"color": "orange", "value": 80}, {"color": "red", "value": 90})
"""Steps of a memory gauge in percent."""
PLAIN = ({"color": "green", "value": None},)


class Query(NamedTuple):
    """One PromQL expression and what its series are called."""

    expression: str
    legend: str
    form: str = "time_series"


class Panel(NamedTuple):
    """One panel; its place follows from its order and width."""

    title: str
    description: str
    unit: str
    """Grafana's id of the unit."""
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 12
    thresholds: tuple[dict[str, Any], ...] = PLAIN
    low: float | None = None
    high: float | None = None
    logarithmic: bool = False


class Row(NamedTuple):
    """A heading and the panels below it."""

    title: str
    panels: tuple[Panel, ...]


def _speed(part: str) -> str:
    return f"rate(training_step_duration_seconds_{part}{{{TRAINER}}}[$__rate_interval])"


def _quantile(share: float) -> str:
    return f"histogram_quantile({share}, sum by (run, le) ({_speed('bucket')}))"


TRAINING = Row(
    "Training",
    (
        Panel(
            "Training loss",
            "Newest loss of each rank. A gap is a loss that was NaN.",
            "none",
            (Query(f"training_loss{{{TRAINER}}}", "{{run}} rank {{rank}}"),),
        ),
        Panel(
            "Learning rate",
            "Learning-rate schedule, as the optimizer has it.",
            "none",
            (Query(f"learning_rate{{{TRAINER}}}", "{{run}} rank {{rank}}"),),
        ),
        Panel(
            "Step duration, distribution",
            "How many steps took how long. A second band is a slow kind of step: a checkpoint, an evaluation, a stall.",
            "s",
            (
                Query(
                    f"sum by (le) (increase(training_step_duration_seconds_bucket{{{TRAINER}}}[$__rate_interval]))",
                    "{{le}}",
                    "heatmap",
                ),
            ),
            "heatmap",
        ),
        Panel(
            "Step duration",
            "Mean, median and 95th percentile over the ranks of a run. Percentiles are exact to a bucket.",
            "s",
            (
                Query(f"sum by (run) ({_speed('sum')}) / sum by (run) ({_speed('count')})", "{{run}} mean"),
                Query(_quantile(0.5), "{{run}} median"),
                Query(_quantile(0.95), "{{run}} 95 %"),
            ),
        ),
        Panel(
            "Steps per second",
            "Of the slowest rank: the others wait for it.",
            "none",
            (Query(f"min by (run) (rate(training_steps_total{{{TRAINER}}}[$__rate_interval]))", "{{run}}"),),
            width=8,
        ),
        Panel(
            "Gradient norm",
            "L2 norm before clipping. Above 10 it counts as exploding.",
            "none",
            (Query(f"gradient_norm{{{TRAINER}}}", "{{run}} rank {{rank}}"),),
            width=8,
            thresholds=(*PLAIN, {"color": "red", "value": 10}),
            logarithmic=True,
        ),
        Panel(
            "Epoch",
            "With its fraction, where the program logs it.",
            "none",
            (Query(f"max by (run) (training_epoch{{{TRAINER}}})", "{{run}}"),),
            "stat",
            width=8,
        ),
        Panel(
            "Phases of a step",
            "Where the time of the last step went, mean over the ranks.",
            "s",
            (Query(f"avg by (phase) (stepscope_phase_seconds{{{TRAINER}}})", "{{phase}}"),),
            width=WIDTH,
        ),
    ),
)

GPUS = Row(
    "GPU",
    (
        Panel(
            "GPU utilisation",
            "Share of time in which the GPU ran a kernel. It says that the GPU was busy, not that it was used well.",
            "percent",
            (Query(f"gpu_utilization_percent{{{GPU}}}", "GPU {{gpu_id}}"),),
            low=0,
            high=100,
        ),
        Panel(
            "GPU temperature",
            "Orange from 75 °C, red from 80 °C, where many cards begin to throttle.",
            "celsius",
            (Query(f"max by (gpu_id) (gpu_temperature_celsius{{{GPU}}})", "GPU {{gpu_id}}"),),
            "gauge",
            thresholds=HOT,
            low=0,
            high=100,
        ),
        Panel(
            "GPU power draw",
            "Power that each GPU draws.",
            "watt",
            (Query(f"gpu_power_draw_watts{{{GPU}}}", "GPU {{gpu_id}}"),),
            low=0,
        ),
        Panel(
            "GPU memory",
            "Memory in use on the device, and its capacity. MB of the names are MiB.",
            "mbytes",
            (
                Query(f"gpu_memory_used_mb{{{GPU}}}", "GPU {{gpu_id}} used"),
                Query(f"gpu_memory_total_mb{{{GPU}}}", "GPU {{gpu_id}} total"),
            ),
            low=0,
        ),
        Panel(
            "GPU memory in use",
            "Share of the capacity; orange from 80 %, red from 90 %.",
            "percent",
            (Query(f"100 * gpu_memory_used_mb{{{GPU}}} / gpu_memory_total_mb{{{GPU}}}", "GPU {{gpu_id}}"),),
            "gauge",
            width=8,
            thresholds=FULL,
            low=0,
            high=100,
        ),
        Panel(
            "Memory of the allocator",
            "What PyTorch's allocator has given out and what it holds.",
            "mbytes",
            (Query(f"memory_allocation_mb{{{TRAINER}}}", "rank {{rank}} GPU {{gpu_id}} {{kind}}"),),
            width=8,
            low=0,
        ),
        Panel(
            "Fan speed",
            "As a share of the maximum; cards without a fan have none.",
            "percent",
            (Query(f"gpu_fan_speed_percent{{{GPU}}}", "GPU {{gpu_id}}"),),
            width=8,
            low=0,
            high=100,
        ),
    ),
)

HOST = Row(
    "Host",
    (
        Panel(
            "Processors",
            "Processor time in use: of the container's limit, where it has one.",
            "percent",
            (Query(f"cpu_usage_percent{{{MACHINE}}}", "{{run}} {{rank}}"),),
            width=8,
            low=0,
            high=100,
        ),
        Panel(
            "Memory",
            "Memory of the machine, or of the container's limit, in use.",
            "percentunit",
            (Query(f"stepscope_memory_used_ratio{{{MACHINE}}}", "{{run}} {{rank}}"),),
            width=8,
            low=0,
            high=1,
        ),
        Panel(
            "Disk and network",
            "Bytes per second over all disks and all interfaces.",
            "binBps",
            (
                Query(f"stepscope_disk_read_bytes_per_second{{{MACHINE}}}", "read {{rank}}"),
                Query(f"stepscope_disk_write_bytes_per_second{{{MACHINE}}}", "written {{rank}}"),
                Query(f"stepscope_network_received_bytes_per_second{{{MACHINE}}}", "received {{rank}}"),
                Query(f"stepscope_network_sent_bytes_per_second{{{MACHINE}}}", "sent {{rank}}"),
            ),
            width=8,
        ),
        Panel(
            "Monitoring itself",
            "Processor time of the watcher as a share of one processor, and rows that were lost. Lost rows mean that "
            "figures elsewhere are incomplete.",
            "none",
            (
                Query(f"stepscope_watcher_cpu_ratio{{{MACHINE}}}", "watcher, share of a processor"),
                Query(f"sum by (run) (stepscope_drops_total{{{MACHINE}}})", "rows lost"),
                Query("stepscope_exporter_dropped_series_total", "series left out"),
            ),
            width=WIDTH,
        ),
    ),
)

ROWS = (TRAINING, GPUS, HOST)
VARIABLES = (
    ("project", "Project", "label_values(training_steps_total, project)"),
    ("run", "Run", 'label_values(training_steps_total{project=~"$project"}, run)'),
    ("rank", "Rank", 'label_values(training_steps_total{project=~"$project", run=~"$run"}, rank)'),
    ("gpu", "GPU", 'label_values(gpu_utilization_percent{project=~"$project", run=~"$run"}, gpu_id)'),
)
