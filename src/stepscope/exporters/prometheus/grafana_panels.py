"""The panels of the Grafana dashboard, as data: the query of each, and what its figure means."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

WIDTH = 24
"""Columns of Grafana's grid."""

TRAINER = 'project=~"$project", run=~"$run", rank=~"$rank"'
MACHINE = 'project=~"$project", run=~"$run"'
GPU = f'{MACHINE}, gpu_id=~"$gpu"'

BY_RANK, BY_GPU, BY_HOST = "{{run}} rank {{rank}}", "GPU {{gpu_id}}", "{{run}} {{rank}}"
"""Legends of series."""


class PanelScale(NamedTuple):
    """The values that a panel shows: Grafana's id of their unit, the ends of the axis, and where colours change."""

    unit: str = "none"
    low: float | None = None
    high: float | None = None
    colours: tuple[tuple[str, float | None], ...] = (("green", None),)
    logarithmic: bool = False


PERCENT, SECONDS, MEBIBYTES = PanelScale("percent", 0, 100), PanelScale("s"), PanelScale("mbytes", 0)
HOT = PanelScale("celsius", 0, 100, (("green", None), ("orange", 75), ("red", 80)))
"""The built-in alert fires at 80 °C."""
FULL = PanelScale("percent", 0, 100, (("green", None), ("orange", 80), ("red", 90)))


class Panel(NamedTuple):
    """One panel; its place follows from its order and width."""

    title: str
    description: str
    queries: Mapping[str, str]
    """PromQL expressions by the legend of their series."""
    scale: PanelScale = PanelScale()
    kind: str = "timeseries"
    width: int = 12


class PanelRow(NamedTuple):
    """A heading and the panels below it."""

    title: str
    panels: tuple[Panel, ...]


def _durations(part: str, function: str = "rate") -> str:
    return f"{function}(training_step_duration_seconds_{part}{{{TRAINER}}}[$__rate_interval])"


def _quantile(share: float) -> str:
    return f"histogram_quantile({share}, sum by (run, le) ({_durations('bucket')}))"


def _host_rate(name: str) -> str:
    return f"stepscope_{name}_bytes_per_second{{{MACHINE}}}"


TRAINING = PanelRow(
    "Training",
    (
        Panel(
            "Training loss",
            "Newest loss of each rank. A gap is a loss that was NaN.",
            {BY_RANK: f"training_loss{{{TRAINER}}}"},
        ),
        Panel(
            "Learning rate",
            "Learning-rate schedule, as the optimizer has it.",
            {BY_RANK: f"learning_rate{{{TRAINER}}}"},
        ),
        Panel(
            "Step duration, distribution",
            "How many steps took how long. A second band is a slow kind of step: a checkpoint, an evaluation, a stall.",
            {"{{le}}": f"sum by (le) ({_durations('bucket', 'increase')})"},
            SECONDS,
            "heatmap",
        ),
        Panel(
            "Step duration",
            "Mean, median and 95th percentile over the ranks of a run. Percentiles are exact to a bucket.",
            {
                "{{run}} mean": f"sum by (run) ({_durations('sum')}) / sum by (run) ({_durations('count')})",
                "{{run}} median": _quantile(0.5),
                "{{run}} 95 %": _quantile(0.95),
            },
            SECONDS,
        ),
        Panel(
            "Steps per second",
            "Of the slowest rank: the others wait for it.",
            {"{{run}}": f"min by (run) (rate(training_steps_total{{{TRAINER}}}[$__rate_interval]))"},
            width=8,
        ),
        Panel(
            "Gradient norm",
            "L2 norm before clipping. Above 10 it counts as exploding.",
            {BY_RANK: f"gradient_norm{{{TRAINER}}}"},
            PanelScale(colours=(("green", None), ("red", 10)), logarithmic=True),
            width=8,
        ),
        Panel(
            "Epoch",
            "With its fraction, where the program logs it.",
            {"{{run}}": f"max by (run) (training_epoch{{{TRAINER}}})"},
            kind="stat",
            width=8,
        ),
        Panel(
            "Phases of a step",
            "Where the time of the last step went, mean over the ranks.",
            {"{{phase}}": f"avg by (phase) (stepscope_phase_seconds{{{TRAINER}}})"},
            SECONDS,
            width=WIDTH,
        ),
    ),
)

GPUS = PanelRow(
    "GPU",
    (
        Panel(
            "GPU utilisation",
            "Share of time in which the GPU ran a kernel. It says that the GPU was busy, not that it was used well.",
            {BY_GPU: f"gpu_utilization_percent{{{GPU}}}"},
            PERCENT,
        ),
        Panel(
            "GPU temperature",
            "Orange from 75 °C, red from 80 °C, where many cards begin to throttle.",
            {BY_GPU: f"max by (gpu_id) (gpu_temperature_celsius{{{GPU}}})"},
            HOT,
            "gauge",
        ),
        Panel(
            "GPU power draw",
            "Power that each GPU draws.",
            {BY_GPU: f"gpu_power_draw_watts{{{GPU}}}"},
            PanelScale("watt", 0),
        ),
        Panel(
            "GPU memory",
            "Memory in use on the device, and its capacity. MB of the names are MiB.",
            {
                "GPU {{gpu_id}} used": f"gpu_memory_used_mb{{{GPU}}}",
                "GPU {{gpu_id}} total": f"gpu_memory_total_mb{{{GPU}}}",
            },
            MEBIBYTES,
        ),
        Panel(
            "GPU memory in use",
            "Share of the capacity; orange from 80 %, red from 90 %.",
            {BY_GPU: f"100 * gpu_memory_used_mb{{{GPU}}} / gpu_memory_total_mb{{{GPU}}}"},
            FULL,
            "gauge",
            width=8,
        ),
        Panel(
            "Memory of the allocator",
            "What PyTorch's allocator has given out and what it holds.",
            {"rank {{rank}} GPU {{gpu_id}} {{kind}}": f"memory_allocation_mb{{{TRAINER}}}"},
            MEBIBYTES,
            width=8,
        ),
        Panel(
            "Fan speed",
            "As a share of the maximum; cards without a fan have none.",
            {BY_GPU: f"gpu_fan_speed_percent{{{GPU}}}"},
            PERCENT,
            width=8,
        ),
    ),
)

HOST = PanelRow(
    "Host",
    (
        Panel(
            "Processors",
            "Processor time in use: of the container's limit, where it has one.",
            {BY_HOST: f"cpu_usage_percent{{{MACHINE}}}"},
            PERCENT,
            width=8,
        ),
        Panel(
            "Memory",
            "Memory of the machine, or of the container's limit, in use.",
            {BY_HOST: f"stepscope_memory_used_ratio{{{MACHINE}}}"},
            PanelScale("percentunit", 0, 1),
            width=8,
        ),
        Panel(
            "Disk and network",
            "Bytes per second over all disks and all interfaces.",
            {
                "read {{rank}}": _host_rate("disk_read"),
                "written {{rank}}": _host_rate("disk_write"),
                "received {{rank}}": _host_rate("network_received"),
                "sent {{rank}}": _host_rate("network_sent"),
            },
            PanelScale("binBps"),
            width=8,
        ),
        Panel(
            "Monitoring itself",
            "Processor time of the watcher as a share of one processor, and rows that were lost. Lost rows mean that "
            "figures elsewhere are incomplete.",
            {
                "watcher, share of a processor": f"stepscope_watcher_cpu_ratio{{{MACHINE}}}",
                "rows lost": f"sum by (run) (stepscope_drops_total{{{MACHINE}}})",
                "series left out": "stepscope_exporter_dropped_series_total",
            },
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
