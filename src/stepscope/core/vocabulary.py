"""The metric vocabulary: canonical names with unit, kind and help, and the spellings people use.

Recording keeps the user's own spelling; aliases are for reading (`series("lr")` finds `learning_rate`) and exports.
Values are kept in base units. A `*` in a name stands for one instance, such as the index of a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


GAUGE, COUNTER, DURATION = "gauge", "counter", "duration"

UNIT_SUFFIXES = {
    "bytes_per_second": "bytes/second",
    "samples_per_second": "samples/second",
    "tokens_per_second": "tokens/second",
    "steps_per_second": "steps/second",
    "bytes_total": "bytes",
    **{unit: unit for unit in ("seconds", "bytes", "ratio", "percent", "celsius", "watts", "joules", "hertz")},
    "mb": "MiB",
    "gb": "GiB",
    "ms": "milliseconds",
}
"""Unit of a metric by the end of its name, alone or after `_` or `/`, unless a table gives another."""


def gauge(name: str, text: str, unit: str | None = None) -> Metric:
    """Return a gauge with this help; without a unit it has the one that its name ends in."""
    return Metric(name, _unit_in(name) if unit is None else unit, GAUGE, text)


def counter(name: str, text: str, unit: str | None = None) -> Metric:
    """Return a counter with this help; without a unit it has the one before `_total`."""
    return Metric(name, _unit_in(name.removesuffix("_total")) if unit is None else unit, COUNTER, text)


def duration(name: str, text: str) -> Metric:
    """Return a part of a step's time with this help."""
    return Metric(name, "seconds", DURATION, text)


def _unit_in(name: str) -> str:
    words = name.rpartition("/")[2].split("_")
    ends = ("_".join(words[first:]) for first in range(len(words)))
    return next((UNIT_SUFFIXES[end] for end in ends if end in UNIT_SUFFIXES), "")


METRICS: tuple[Metric, ...] = (
    gauge("loss", "Training loss."),
    gauge("accuracy", "Share of correct answers, 0 to 1.", "ratio"),
    gauge("learning_rate", "Learning rate of the optimizer."),
    gauge("grad_norm", "Gradient norm before clipping."),
    gauge("grad_norm_clipped", "Gradient norm after clipping, as the optimizer sees it."),
    gauge("grad_norm/*", "Gradient norm of a tracked layer, before clipping."),
    gauge("grad_norm_local", "Norm of this rank's gradient shards."),
    gauge("grad_norm_interval", "Steps between two measured gradient norms.", "steps"),
    gauge("grad_zero_ratio/*", "Share of a tracked layer's gradient that is exactly zero.", "ratio"),
    gauge("update_ratio", "Norm of a step's weight update divided by the norm of the weights, over a sample of them."),
    gauge("activation_zero_ratio/*", "Share of a module's output that is exactly zero.", "ratio"),
    gauge("activation_saturated_ratio/*", "Share of a bounded module's output at its bounds.", "ratio"),
    gauge("attention_entropy/*", "Mean attention entropy of a module.", "nats"),
    gauge("epoch", "Epoch, including the fraction."),
    gauge("perplexity", "exp of the loss per token."),
    duration("step_seconds", "Duration of a step, from the end of the previous step to its own end."),
    counter("steps_total", "Steps done.", "steps"),
    gauge("samples", "Samples in a step, as passed to step(samples=).", "samples"),
    gauge("tokens", "Tokens in a step.", "tokens"),
    gauge("batch_size", "Samples per batch.", "samples"),
    gauge("samples_per_second", "Samples divided by the time they took."),
    gauge("tokens_per_second", "Tokens divided by the time they took."),
    gauge("steps_per_second", "Steps divided by the time they took."),
    gauge("microbatches_per_second", "Batches divided by their time, if a step has several.", "batches/second"),
    gauge("padding_ratio", "Share of a step's tokens that are padding."),
    gauge("mfu_ratio", "Model FLOPs utilization: FLOPs of a step divided by its time and the device's peak."),
    duration("phase/data", "Waiting for the next batch."),
    duration("phase/copy", "Moving the batch to the device."),
    duration("phase/forward", "Forward pass."),
    duration("phase/backward", "Backward pass."),
    duration("phase/optimizer", "Optimizer step."),
    duration("phase/communication", "Waiting for other ranks."),
    duration("phase/checkpoint", "Saving a checkpoint."),
    duration("phase/evaluation", "Evaluating the model."),
    duration("phase/compile", "Compiling the model."),
    duration("phase/logging", "Logging, printing and plotting in the program."),
    duration("phase/gc", "Garbage collection of the oldest generation."),
    duration("phase/other", "The rest of the step; all phases add up to the step."),
    gauge("data/load_seconds", "Loading the items of a batch, inside a loader worker."),
    gauge("data/transform_seconds", "Transforming the items: part of loading, if it can be measured."),
    gauge("data/collate_seconds", "Collating the items into a batch, inside a loader worker."),
    gauge("communication/reduce_seconds", "Gradient reduction of a step by DDP, measured by DDP itself."),
    gauge("communication/exposed_seconds", "Gradient reduction that does not overlap with the backward pass."),
    gauge("evaluation/loss", "Mean loss of one evaluation."),
    gauge("device/copy_seconds", "Copies of a step, measured on the device."),
    gauge("device/forward_seconds", "Forward passes of a step, measured on the device."),
    gauge("device/backward_seconds", "Backward passes of a step, measured on the device."),
    gauge("device/optimizer_seconds", "Optimizer updates of a step, measured on the device."),
    gauge("memory/peak_bytes", "Peak memory of the process."),
    gauge("memory/resident_bytes", "Resident memory of the training process at the end of a step."),
    gauge("memory/used_bytes", "Memory in use on the machine."),
    gauge("memory/available_bytes", "Memory still available on the machine."),
    gauge("memory/used_ratio", "Memory in use, as a share of the cgroup's limit if there is one, else of all memory."),
    gauge("process/*/memory_bytes", "Resident memory of the rank's process."),
    gauge("cpu/usage_ratio", "CPU time in use, as a share of the cgroup's quota if there is one, else of all CPUs."),
    gauge("disk/read_bytes_per_second", "Bytes read from disks per second."),
    gauge("disk/write_bytes_per_second", "Bytes written to disks per second."),
    gauge("network/received_bytes_per_second", "Bytes received per second."),
    gauge("network/sent_bytes_per_second", "Bytes sent per second."),
    gauge("gpu/*/utilization_ratio", "Share of time in which the GPU ran a kernel."),
    gauge("gpu/*/memory_used_bytes", "GPU memory in use."),
    gauge("gpu/*/memory_total_bytes", "Total GPU memory."),
    gauge("gpu/*/memory_allocated_bytes", "GPU memory allocated to tensors by the framework."),
    gauge("gpu/*/memory_reserved_bytes", "GPU memory reserved by the framework's allocator."),
    gauge("gpu/*/memory_peak_bytes", "Peak GPU memory allocated to tensors."),
    gauge("gpu/*/memory_fragmentation_ratio", "Share of the reserved memory in free, split blocks."),
    gauge("gpu/*/memory_largest_free_bytes", "Largest free block of the framework's allocator."),
    gauge("gpu/*/temperature_celsius", "GPU temperature."),
    gauge("gpu/*/power_watts", "GPU power draw."),
    gauge("gpu/*/fan_ratio", "Fan speed as a share of its maximum."),
    counter("stepscope/rows_total", "Rows that the recorder wrote.", "rows"),
    counter("stepscope/bytes_total", "Bytes that the recorder wrote to its ring."),
    counter("stepscope/drops_total", "Rows lost because they were overwritten before they were drained.", "rows"),
    counter(
        "stepscope/refused_total", "Values refused because they are not numbers or their name is invalid.", "values"
    ),
    gauge("stepscope/log_seconds", "Time of one log call on the training thread, mean over a sample of calls."),
    gauge("stepscope/drain_lag_seconds", "Age of the oldest row that is not drained yet."),
    gauge("stepscope/ring_fill_ratio", "Share of the ring that is waiting to be drained."),
    gauge("stepscope/tail_bytes", "Bytes of the run that are not sealed yet."),
    gauge("stepscope/watcher_cpu_ratio", "CPU time of the watcher, as a share of one CPU."),
    gauge("stepscope/watcher_memory_bytes", "Resident memory of the watcher."),
    gauge("stepscope/sink/*/behind_rows", "Rows on disk that the sink does not have yet.", "rows"),
    gauge("stepscope/sink/*/behind_seconds", "Age of the oldest row that the sink does not have yet; 0 if it has all."),
    counter("stepscope/sink/*/sent_rows", "Rows that the sink has confirmed.", "rows"),
    counter("stepscope/sink/*/refused_rows", "Rows that the sink refused for good.", "rows"),
)

_FACTORS = {"": 1.0, "percent": 0.01, "MiB": MIB, "GiB": GIB, "MiB/second": MIB}
"""Factor from each unit of an alias to the base unit."""


def _spelled(canonical: str, *names: str, unit: str = "") -> Iterator[MetricAlias]:
    return (MetricAlias(name, canonical, _FACTORS[unit], unit) for name in names)


ALIASES: tuple[MetricAlias, ...] = (
    *_spelled("learning_rate", "lr", "train/learning_rate", "train/lr"),
    *_spelled("grad_norm", "gradient_norm", "train/grad_norm"),
    *_spelled("loss", "train_loss", "train/loss", "training_loss"),
    *_spelled("accuracy", "acc", "train_accuracy"),
    *_spelled("epoch", "training_epoch", "train/epoch"),
    *_spelled("steps_total", "training_steps_total"),
    *_spelled("step_seconds", "batch_time", "step_time", "step_duration", "training_step_duration_seconds"),
    *_spelled("samples_per_second", "throughput", "samples_per_sec", "throughput_samples_per_sec"),
    *_spelled("tokens_per_second", "tokens_per_sec"),
    *_spelled("steps_per_second", "batches_per_second"),
    *_spelled("cpu/usage_ratio", "cpu_percent", "cpu_usage_percent", unit="percent"),
    *_spelled("cpu/usage_ratio", "cpu_utilization"),
    *_spelled("memory/used_ratio", "memory_percent", "memory_usage_percent", unit="percent"),
    *_spelled("memory/available_bytes", "memory_available_gb", unit="GiB"),
    *_spelled("memory/peak_bytes", "memory_peak_mb", "peak_memory_mb", unit="MiB"),
    *_spelled("process/*/memory_bytes", "process/memory_bytes"),
    *_spelled("process/*/memory_bytes", "cpu_memory_mb", unit="MiB"),
    *_spelled("disk/read_bytes_per_second", "disk_read_mb_s", unit="MiB/second"),
    *_spelled("gpu/*/memory_used_bytes", "gpu_memory_mb", "gpu_memory_used_mb", "memory_allocated", unit="MiB"),
    *_spelled("gpu/*/memory_total_bytes", "gpu_memory_total_mb", unit="MiB"),
    *_spelled("gpu/*/memory_allocated_bytes", "memory_allocated_mb", "memory_allocation_mb", unit="MiB"),
    *_spelled("gpu/*/memory_allocated_bytes", "allocated_gb", unit="GiB"),
    *_spelled("gpu/*/memory_reserved_bytes", "memory_reserved", "memory_reserved_mb", unit="MiB"),
    *_spelled("gpu/*/memory_reserved_bytes", "reserved_gb", unit="GiB"),
    *_spelled("gpu/*/memory_peak_bytes", "max_memory_allocated", unit="MiB"),
    *_spelled("gpu/*/memory_peak_bytes", "max_allocated_gb", "peak_allocated_gb", unit="GiB"),
    *_spelled("gpu/*/utilization_ratio", "gpu_utilization", "gpu_utilization_percent", unit="percent"),
    *_spelled("gpu/*/temperature_celsius", "gpu_temperature", "gpu_temperature_celsius"),
    *_spelled("gpu/*/power_watts", "gpu_power_watts", "gpu_power_draw_watts"),
    *_spelled("gpu/*/fan_ratio", "gpu_fan_speed_percent", unit="percent"),
)

BY_NAME = {metric.name: metric for metric in METRICS}
aliases = {alias.name: alias for alias in ALIASES}
PHASES = tuple(metric.name.removeprefix("phase/") for metric in METRICS if metric.name.startswith("phase/"))
"""Parts of a step that have a meaning, in the order in which they are shown; "other", the rest, is last."""


SINK = "stepscope/sink/"
"""Start of the metrics of a sink, whose name follows: any word, where other instances are numbers."""
MEETING = ("backward", "communication")
"""Phases in which a rank may wait for others: without them a step is its own time."""


def phase_place(phase: str) -> int:
    """Return where a phase is shown among others: those of the program's own making stand just before "other"."""
    return 2 * PHASES.index(phase) if phase in PHASES else 2 * len(PHASES) - 3


def pattern_of(name: str) -> str:
    """Return a name with its instances replaced, as the table has it: `gpu/3/power_watts` is `gpu/*/power_watts`."""
    if name.startswith(SINK):
        return f"{SINK}*/{name.rpartition('/')[2]}"
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
    known = BY_NAME.get(name) or BY_NAME.get(pattern_of(name))
    if known is not None:
        return known
    alias = aliases.get(name)
    if alias is not None:
        return BY_NAME[alias.canonical]._replace(unit=alias.unit or BY_NAME[alias.canonical].unit)
    family, _, instance = name.partition("/")  # `grad_norm/encoder.0` is a `grad_norm/*`
    return BY_NAME.get(f"{family}/*") if instance and "/" not in instance else None


def canonical(name: str, instance: int | str = 0) -> str:
    """Return the canonical name for any spelling; a name that is not in the vocabulary stays as it is.

    `instance` is the GPU that an alias without an index means.
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
    metric = metric_of(name)
    if metric is not None:
        return metric.unit
    return "seconds" if name.startswith("phase/") else _unit_in(name)
