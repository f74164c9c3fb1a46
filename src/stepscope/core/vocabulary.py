"""The metric vocabulary: canonical names with unit, kind and help, and the spellings people use.

Recording keeps the user's own spelling; aliases are for reading (`series("lr")` finds `learning_rate`) and exports.
Values are kept in base units. A `*` in a name stands for one instance, such as the index of a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

MIB = 2.0**20
GIB = 2.0**30
"""MB and GB in compatible names mean 2**20 and 2**30 bytes; they are labelled MiB and GiB."""


class Metric(NamedTuple):
    """Metadata of a metric."""

    name: str
    unit: str
    """Base unit of the recorded value; empty for a pure number."""
    kind: str
    """gauge (a current value), counter (a total that only grows) or duration (part of a step's time)."""
    help: str


class MetricAlias(NamedTuple):
    """Another spelling of a metric."""

    name: str
    canonical: str
    factor: float = 1.0
    """A value under the alias times this is the value in the canonical unit."""
    unit: str = ""
    """Unit under the alias, where it differs from the canonical one."""


GAUGE = "gauge"
COUNTER = "counter"
DURATION = "duration"

METRICS: tuple[Metric, ...] = (
    Metric("loss", "", GAUGE, "Training loss."),
    Metric("accuracy", "ratio", GAUGE, "Share of correct answers, 0 to 1."),
    Metric("learning_rate", "", GAUGE, "Learning rate of the optimizer."),
    Metric("grad_norm", "", GAUGE, "Gradient norm before clipping."),
    Metric("grad_norm_clipped", "", GAUGE, "Gradient norm after clipping, as the optimizer sees it."),
    Metric("grad_norm/*", "", GAUGE, "Gradient norm of a tracked layer, before clipping."),
    Metric("grad_norm_local", "", GAUGE, "Norm of this rank's gradient shards."),
    Metric("grad_norm_interval", "steps", GAUGE, "Steps between two measured gradient norms."),
    Metric("grad_zero_ratio/*", "ratio", GAUGE, "Share of a tracked layer's gradient that is exactly zero."),
    Metric(
        "update_ratio",
        "ratio",
        GAUGE,
        "Norm of a step's weight update divided by the norm of the weights, over a sample of them.",
    ),
    Metric("activation_zero_ratio/*", "ratio", GAUGE, "Share of a module's output that is exactly zero."),
    Metric("activation_saturated_ratio/*", "ratio", GAUGE, "Share of a bounded module's output at its bounds."),
    Metric("attention_entropy/*", "nats", GAUGE, "Mean attention entropy of a module."),
    Metric("epoch", "", GAUGE, "Epoch, including the fraction."),
    Metric("perplexity", "", GAUGE, "exp of the loss per token."),
    Metric(
        "step_seconds", "seconds", DURATION, "Duration of a step, from the end of the previous step to its own end."
    ),
    Metric("steps_total", "steps", COUNTER, "Steps done."),
    Metric("samples", "samples", GAUGE, "Samples in a step, as passed to step(samples=)."),
    Metric("tokens", "tokens", GAUGE, "Tokens in a step."),
    Metric("batch_size", "samples", GAUGE, "Samples per batch."),
    Metric("samples_per_second", "samples/second", GAUGE, "Samples divided by the time they took."),
    Metric("tokens_per_second", "tokens/second", GAUGE, "Tokens divided by the time they took."),
    Metric("steps_per_second", "steps/second", GAUGE, "Steps divided by the time they took."),
    Metric("microbatches_per_second", "batches/second", GAUGE, "Batches divided by their time, if a step has several."),
    Metric("padding_ratio", "ratio", GAUGE, "Share of a step's tokens that are padding."),
    Metric(
        "mfu_ratio",
        "ratio",
        GAUGE,
        "Model FLOPs utilization: FLOPs of a step divided by its time and the device's peak.",
    ),
    Metric("phase/data", "seconds", DURATION, "Waiting for the next batch."),
    Metric("phase/copy", "seconds", DURATION, "Moving the batch to the device."),
    Metric("phase/forward", "seconds", DURATION, "Forward pass."),
    Metric("phase/backward", "seconds", DURATION, "Backward pass."),
    Metric("phase/optimizer", "seconds", DURATION, "Optimizer step."),
    Metric("phase/communication", "seconds", DURATION, "Waiting for other ranks."),
    Metric("phase/checkpoint", "seconds", DURATION, "Saving a checkpoint."),
    Metric("phase/evaluation", "seconds", DURATION, "Evaluating the model."),
    Metric("phase/compile", "seconds", DURATION, "Compiling the model."),
    Metric("phase/logging", "seconds", DURATION, "Logging, printing and plotting in the program."),
    Metric("phase/gc", "seconds", DURATION, "Garbage collection of the oldest generation."),
    Metric("phase/other", "seconds", DURATION, "The rest of the step; all phases add up to the step."),
    Metric("data/load_seconds", "seconds", GAUGE, "Loading the items of a batch, inside a loader worker."),
    Metric(
        "data/transform_seconds", "seconds", GAUGE, "Transforming the items: part of loading, if it can be measured."
    ),
    Metric("data/collate_seconds", "seconds", GAUGE, "Collating the items into a batch, inside a loader worker."),
    Metric(
        "communication/reduce_seconds", "seconds", GAUGE, "Gradient reduction of a step by DDP, measured by DDP itself."
    ),
    Metric(
        "communication/exposed_seconds",
        "seconds",
        GAUGE,
        "Gradient reduction that does not overlap with the backward pass.",
    ),
    Metric("evaluation/loss", "", GAUGE, "Mean loss of one evaluation."),
    Metric("device/copy_seconds", "seconds", GAUGE, "Copies of a step, measured on the device."),
    Metric("device/forward_seconds", "seconds", GAUGE, "Forward passes of a step, measured on the device."),
    Metric("device/backward_seconds", "seconds", GAUGE, "Backward passes of a step, measured on the device."),
    Metric("device/optimizer_seconds", "seconds", GAUGE, "Optimizer updates of a step, measured on the device."),
    Metric("memory/peak_bytes", "bytes", GAUGE, "Peak memory of the process."),
    Metric("memory/resident_bytes", "bytes", GAUGE, "Resident memory of the training process at the end of a step."),
    Metric("memory/used_bytes", "bytes", GAUGE, "Memory in use on the machine."),
    Metric("memory/available_bytes", "bytes", GAUGE, "Memory still available on the machine."),
    Metric("memory/used_ratio", "ratio", GAUGE, "Share of the machine's memory in use."),
    Metric("process/*/memory_bytes", "bytes", GAUGE, "Resident memory of the training process of a rank."),
    Metric("cpu/usage_ratio", "ratio", GAUGE, "CPU time in use, as a share of all CPUs."),
    Metric("disk/read_bytes_per_second", "bytes/second", GAUGE, "Bytes read from disks per second."),
    Metric("disk/write_bytes_per_second", "bytes/second", GAUGE, "Bytes written to disks per second."),
    Metric("network/received_bytes_per_second", "bytes/second", GAUGE, "Bytes received per second."),
    Metric("network/sent_bytes_per_second", "bytes/second", GAUGE, "Bytes sent per second."),
    Metric("gpu/*/utilization_ratio", "ratio", GAUGE, "Share of time in which the GPU ran a kernel."),
    Metric("gpu/*/memory_used_bytes", "bytes", GAUGE, "GPU memory in use."),
    Metric("gpu/*/memory_total_bytes", "bytes", GAUGE, "Total GPU memory."),
    Metric("gpu/*/memory_allocated_bytes", "bytes", GAUGE, "GPU memory allocated to tensors by the framework."),
    Metric("gpu/*/memory_reserved_bytes", "bytes", GAUGE, "GPU memory reserved by the framework's allocator."),
    Metric("gpu/*/memory_peak_bytes", "bytes", GAUGE, "Peak GPU memory allocated to tensors."),
    Metric("gpu/*/memory_fragmentation_ratio", "ratio", GAUGE, "Share of the reserved memory in free, split blocks."),
    Metric("gpu/*/memory_largest_free_bytes", "bytes", GAUGE, "Largest free block of the framework's allocator."),
    Metric("gpu/*/temperature_celsius", "celsius", GAUGE, "GPU temperature."),
    Metric("gpu/*/power_watts", "watts", GAUGE, "GPU power draw."),
    Metric("gpu/*/fan_ratio", "ratio", GAUGE, "Fan speed as a share of its maximum."),
    Metric("stepscope/rows_total", "rows", COUNTER, "Rows that the recorder wrote."),
    Metric("stepscope/bytes_total", "bytes", COUNTER, "Bytes that the recorder wrote to its ring."),
    Metric(
        "stepscope/drops_total", "rows", COUNTER, "Rows lost because they were overwritten before they were drained."
    ),
    Metric(
        "stepscope/refused_total",
        "values",
        COUNTER,
        "Values refused because the value is not a number or the name is invalid.",
    ),
    Metric(
        "stepscope/log_seconds",
        "seconds",
        GAUGE,
        "Time of one log call on the training thread, mean over a sample of calls.",
    ),
    Metric("stepscope/drain_lag_seconds", "seconds", GAUGE, "Age of the oldest row that is not drained yet."),
    Metric("stepscope/ring_fill_ratio", "ratio", GAUGE, "Share of the ring that is waiting to be drained."),
    Metric("stepscope/tail_bytes", "bytes", GAUGE, "Bytes of the run that are not sealed yet."),
    Metric("stepscope/watcher_cpu_ratio", "ratio", GAUGE, "CPU time of the watcher, as a share of one CPU."),
    Metric("stepscope/watcher_memory_bytes", "bytes", GAUGE, "Resident memory of the watcher."),
)

ALIASES: tuple[MetricAlias, ...] = (
    MetricAlias("lr", "learning_rate"),
    MetricAlias("gradient_norm", "grad_norm"),
    MetricAlias("train_loss", "loss"),
    MetricAlias("train/loss", "loss"),
    MetricAlias("training_loss", "loss"),
    MetricAlias("acc", "accuracy"),
    MetricAlias("train_accuracy", "accuracy"),
    MetricAlias("training_epoch", "epoch"),
    MetricAlias("training_steps_total", "steps_total"),
    MetricAlias("batch_time", "step_seconds"),
    MetricAlias("step_time", "step_seconds"),
    MetricAlias("step_duration", "step_seconds"),
    MetricAlias("training_step_duration_seconds", "step_seconds"),
    MetricAlias("throughput", "samples_per_second"),
    MetricAlias("samples_per_sec", "samples_per_second"),
    MetricAlias("throughput_samples_per_sec", "samples_per_second"),
    MetricAlias("tokens_per_sec", "tokens_per_second"),
    MetricAlias("batches_per_second", "steps_per_second"),
    MetricAlias("cpu_percent", "cpu/usage_ratio", 0.01, "percent"),
    MetricAlias("cpu_usage_percent", "cpu/usage_ratio", 0.01, "percent"),
    MetricAlias("cpu_utilization", "cpu/usage_ratio"),
    MetricAlias("memory_percent", "memory/used_ratio", 0.01, "percent"),
    MetricAlias("memory_usage_percent", "memory/used_ratio", 0.01, "percent"),
    MetricAlias("memory_available_gb", "memory/available_bytes", GIB, "GiB"),
    MetricAlias("memory_peak_mb", "memory/peak_bytes", MIB, "MiB"),
    MetricAlias("peak_memory_mb", "memory/peak_bytes", MIB, "MiB"),
    MetricAlias("process/memory_bytes", "process/*/memory_bytes"),
    MetricAlias("cpu_memory_mb", "process/*/memory_bytes", MIB, "MiB"),
    MetricAlias("disk_read_mb_s", "disk/read_bytes_per_second", MIB, "MiB/second"),
    MetricAlias("gpu_memory_mb", "gpu/*/memory_used_bytes", MIB, "MiB"),
    MetricAlias("gpu_memory_used_mb", "gpu/*/memory_used_bytes", MIB, "MiB"),
    MetricAlias("memory_allocated", "gpu/*/memory_used_bytes", MIB, "MiB"),
    MetricAlias("gpu_memory_total_mb", "gpu/*/memory_total_bytes", MIB, "MiB"),
    MetricAlias("memory_allocated_mb", "gpu/*/memory_allocated_bytes", MIB, "MiB"),
    MetricAlias("memory_allocation_mb", "gpu/*/memory_allocated_bytes", MIB, "MiB"),
    MetricAlias("allocated_gb", "gpu/*/memory_allocated_bytes", GIB, "GiB"),
    MetricAlias("memory_reserved", "gpu/*/memory_reserved_bytes", MIB, "MiB"),
    MetricAlias("memory_reserved_mb", "gpu/*/memory_reserved_bytes", MIB, "MiB"),
    MetricAlias("reserved_gb", "gpu/*/memory_reserved_bytes", GIB, "GiB"),
    MetricAlias("max_memory_allocated", "gpu/*/memory_peak_bytes", MIB, "MiB"),
    MetricAlias("max_allocated_gb", "gpu/*/memory_peak_bytes", GIB, "GiB"),
    MetricAlias("peak_allocated_gb", "gpu/*/memory_peak_bytes", GIB, "GiB"),
    MetricAlias("gpu_utilization", "gpu/*/utilization_ratio", 0.01, "percent"),
    MetricAlias("gpu_utilization_percent", "gpu/*/utilization_ratio", 0.01, "percent"),
    MetricAlias("gpu_temperature", "gpu/*/temperature_celsius"),
    MetricAlias("gpu_temperature_celsius", "gpu/*/temperature_celsius"),
    MetricAlias("gpu_power_watts", "gpu/*/power_watts"),
    MetricAlias("gpu_power_draw_watts", "gpu/*/power_watts"),
    MetricAlias("gpu_fan_speed_percent", "gpu/*/fan_ratio", 0.01, "percent"),
)

UNIT_PREFIXES = {"phase/": "seconds"}
UNIT_SUFFIXES = {
    "bytes_per_second": "bytes/second",
    "samples_per_second": "samples/second",
    "tokens_per_second": "tokens/second",
    "steps_per_second": "steps/second",
    "seconds": "seconds",
    "bytes": "bytes",
    "bytes_total": "bytes",
    "ratio": "ratio",
    "percent": "percent",
    "celsius": "celsius",
    "watts": "watts",
    "joules": "joules",
    "hertz": "hertz",
    "mb": "MiB",
    "gb": "GiB",
    "ms": "milliseconds",
}
"""Unit of a name that no table has, by how it ends: alone, or after `_` or `/`."""

BY_NAME = {metric.name: metric for metric in METRICS}
aliases = {alias.name: alias for alias in ALIASES}
PHASES = tuple(metric.name.removeprefix("phase/") for metric in METRICS if metric.name.startswith("phase/"))
"""Parts of a step that have a meaning, in the order in which they are shown; "other", the rest, is last."""


MEETING = ("backward", "communication")
"""Phases in which a rank may wait for others: without them a step is its own time."""


def phase_place(phase: str) -> int:
    """Return where a phase is shown among others: those of the program's own making stand just before "other"."""
    return 2 * PHASES.index(phase) if phase in PHASES else 2 * len(PHASES) - 3


def pattern_of(name: str) -> str:
    """Return a name with its instances replaced, as the table has it: `gpu/3/power_watts` is `gpu/*/power_watts`."""
    if not any(map(str.isdecimal, name)):
        return name
    return "/".join("*" if part.isdecimal() else part for part in name.split("/"))


def matches(pattern: str, name: str) -> bool:
    """Return whether a name is one of a pattern's; a `*` stands for one part between slashes."""
    if "*" not in pattern:
        return pattern == name
    parts, given = pattern.split("/"), name.split("/")
    return len(parts) == len(given) and all(part in {"*", own} for part, own in zip(parts, given, strict=True))


def metric_of(name: str) -> Metric | None:
    """Return what is known about a metric, by its canonical name or an alias; None for one of the user's own.

    An alias has the unit of values that are recorded under it.
    """
    return BY_NAME.get(name) or BY_NAME.get(pattern_of(name)) or _aliased(name) or _of_family(name)


def _of_family(name: str) -> Metric | None:
    """Return the metric of which `name` is one of a layer or module: `grad_norm/encoder.0` is a `grad_norm/*`."""
    family, _, instance = name.partition("/")
    return BY_NAME.get(f"{family}/*") if instance and "/" not in instance else None


def _aliased(name: str) -> Metric | None:
    alias = aliases.get(name)
    return BY_NAME[alias.canonical]._replace(unit=alias.unit or BY_NAME[alias.canonical].unit) if alias else None


def canonical(name: str, instance: int | str = 0) -> str:
    """Return the canonical name for any spelling; a name that is not in the vocabulary stays as it is.

    Args:
        name: a canonical name, an alias, or any other.
        instance: which GPU is meant by an alias that names none.
    """
    alias = aliases.get(name)
    return alias.canonical.replace("*", str(instance)) if alias else name


def by_canonical(names: Iterable[str]) -> dict[str, str]:
    """Return the recorded name of each canonical one: the canonical one itself where it was recorded.

    Of several other spellings the first of `names` counts.
    """
    found: dict[str, str] = {}
    for name in names:
        main = canonical(name)
        if name == main:
            found[main] = name
        else:
            found.setdefault(main, name)
    return found


def spellings(name: str, instance: int | str = 0) -> list[tuple[str, float]]:
    """Return the recorded names under which a metric may be found and the factor to the unit of `name`.

    The name itself comes first, then the canonical one, then its other aliases: a reader takes the first it has.
    """
    own = aliases.get(name)
    main = canonical(name, instance)
    scale = own.factor if own else 1.0
    found = {name: 1.0, main: 1.0 / scale}
    for alias in ALIASES:
        if alias.canonical.replace("*", str(instance)) == main:
            found.setdefault(alias.name, alias.factor / scale)
    return list(found.items())


def unit_of(name: str) -> str:
    """Return the unit in which values of that name are recorded: by table, then by prefix and suffix; else empty."""
    alias = aliases.get(name)
    if alias is not None and alias.unit:
        return alias.unit
    metric = metric_of(name)
    if metric is not None:
        return metric.unit
    for prefix, unit in UNIT_PREFIXES.items():
        if name.startswith(prefix):
            return unit
    last = name.rpartition("/")[2]
    return next((unit for end, unit in UNIT_SUFFIXES.items() if last == end or last.endswith(f"_{end}")), "")
