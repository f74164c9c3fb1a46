"""Names of recorded metrics in Prometheus: compatible names, units in all others, labels for instances.

The compatible names (`training_loss`, `gpu_memory_used_mb`) are kept as they are, with their units. Everything else is
`stepscope_<name>_<unit>`. Undeclared names carry the recorded name in the label `metric`, so that two which
would become one, such as `a/b` and `a_b`, stay apart.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core import vocabulary
from stepscope.core.vocabulary import MIB, Metric, unit_of
from stepscope.exporters.prometheus.exposition import COUNTER, GAUGE, HISTOGRAM, valid_name

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX = "stepscope"
STEP_SECONDS = "step_seconds"

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the step histogram in seconds: from a toy loop to a step with a checkpoint in it."""


class Target(NamedTuple):
    """A family, and the place in it that a recorded metric takes."""

    family: str
    """Without the `_total` of a counter."""
    help: str
    factor: float = 1.0
    """The recorded value times this is the value that is served."""
    labels: tuple[tuple[str, str], ...] = ()
    """Beside run, rank and project; here `*` stands for the instance."""
    kind: str = GAUGE

    @property
    def is_own(self) -> bool:
        """Whether it is for an undeclared metric, of the training program's own."""
        return any(label == "metric" for label, _ in self.labels)


def _of_gpu(family: str, text: str, factor: float = 1.0, *labels: tuple[str, str]) -> Target:
    return Target(family, text, factor, (("gpu_id", "*"), *labels))


STEPS = Target("training_steps", "Total training steps", kind=COUNTER)
DURATION = Target("training_step_duration_seconds", "Training step duration", kind=HISTOGRAM)
PHASE = Target("stepscope_phase_seconds", "Time that this phase took in the last step.")
SERIES = Target("stepscope_exporter_series", "Series on this page, without those of the exporter itself.")
_DROPPED = "Series that this page has no room for, and leaves out (at most 65536)."
DROPPED = Target("stepscope_exporter_dropped_series", _DROPPED, kind=COUNTER)

_ALLOCATED = "PyTorch memory allocation in MB (2**20 bytes): allocated, reserved, and the peak of allocated"
DOCUMENTED: dict[str, tuple[Target, ...]] = {
    "loss": (Target("training_loss", "Current training loss"),),
    "epoch": (Target("training_epoch", "Current epoch, with its fraction"),),
    "learning_rate": (Target("learning_rate", "Current learning rate"),),
    "grad_norm": (Target("gradient_norm", "Gradient L2 norm, before clipping"),),
    "cpu/usage_ratio": (Target("cpu_usage_percent", "CPU usage percentage", 100.0),),
    "gpu/*/utilization_ratio": (_of_gpu("gpu_utilization_percent", "GPU compute utilization", 100.0),),
    "gpu/*/memory_used_bytes": (
        _of_gpu("gpu_memory_used_mb", "GPU memory usage in MB (2**20 bytes), under its other documented name", 1 / MIB),
        _of_gpu("gpu_memory_mb", "GPU memory usage in MB (2**20 bytes)", 1 / MIB),
    ),
    "gpu/*/memory_total_bytes": (_of_gpu("gpu_memory_total_mb", "Total GPU memory in MB (2**20 bytes)", 1 / MIB),),
    "gpu/*/temperature_celsius": (_of_gpu("gpu_temperature_celsius", "GPU temperature"),),
    "gpu/*/power_watts": (_of_gpu("gpu_power_draw_watts", "Current power draw"),),
    "gpu/*/fan_ratio": (_of_gpu("gpu_fan_speed_percent", "Fan speed, as a share of its maximum", 100.0),),
    **{
        f"gpu/*/memory_{kind}_bytes": (_of_gpu("memory_allocation_mb", _ALLOCATED, 1 / MIB, ("kind", kind)),)
        for kind in ("allocated", "reserved", "peak")
    },
}
"""The compatible names by canonical name; `gpu/*/memory_used_bytes` has two."""

INSTANCES = {
    "gpu": "gpu_id",
    "cpu": "core",
    "disk": "device",
    "network": "device",
    "process": "rank",
    "power": "sensor",
    "temperature": "sensor",
}
"""Label for the instance that follows a word; another word is its own label."""
SILENT = {"gpu", "process", "power", "temperature"}
"""Words whose instances need no mention in the name: no metric of theirs exists both with and without one."""
UNITS = {
    "seconds": "s",
    "milliseconds": "ms",
    "bytes": "bytes",
    "bytes/second": "binBps",
    "MiB": "mbytes",
    "GiB": "gbytes",
    "ratio": "percentunit",
    "percent": "percent",
    "celsius": "celsius",
    "watts": "watt",
    "joules": "joule",
    "hertz": "hertz",
    "volts": "volt",
}
"""Units that belong into a name, with Grafana's id of each; rows, samples and steps are counts, and in the name."""
OF_RANK = {
    "rows_total",
    "bytes_total",
    "drops_total",
    "refused_total",
    "drain_lag_seconds",
    "ring_fill_ratio",
    "log_seconds",
}
"""Figures of a recorder: the watcher records those of rank 3 as `stepscope/rows_total/rank3`, of rank 0 without it."""
SUFFIXES = ("_total", "_bucket", "_count", "_sum", "_created", "_info", "_gsum", "_gcount")
"""Endings that a parser may take for a part of another family."""


class Names:
    """The names of one set of declared metrics; made once, and queried once for each recorded name."""

    def __init__(self, metrics: Iterable[Metric] = ()) -> None:
        """Know the vocabulary, and what samplers declare beside it."""
        declared = {metric.name: metric for metric in (*vocabulary.METRICS, *metrics)}
        self._exact = {name: metric for name, metric in declared.items() if "*" not in name}
        self._patterns = [
            (re.compile(re.escape(name).replace(r"\*", "([^/]+)")), metric)
            for name, metric in declared.items()
            if "*" in name
        ]
        self._taken = {target.family for target in (STEPS, DURATION, SERIES, DROPPED, PHASE)}
        for metric in declared.values():
            self._taken.update(target.family for target in _declared(metric, ()))

    def targets(self, name: str) -> tuple[Target, ...]:
        """Return the targets of a recorded metric; none if the step histogram and counter already show it."""
        alias = vocabulary.aliases.get(name)
        main = vocabulary.canonical(name)
        if main == STEP_SECONDS:
            return ()
        if main.startswith("phase/"):
            return (PHASE._replace(labels=(("phase", main.removeprefix("phase/")),)),)
        main, labels = _recorder_rank(main)
        metric, instances = self._find(main)
        if metric is None or main == "steps_total":
            return (self.own(name),)
        factor = alias.factor if alias else 1.0
        return tuple(
            target._replace(factor=target.factor * factor, labels=target.labels + labels)
            for target in _declared(metric, instances)
        )

    def own(self, name: str) -> Target:
        """Return the unique target of an undeclared metric."""
        family = _with_unit(f"{PREFIX}_{valid_name(name)}", name, unit_of(name))
        if family in self._taken or any(family.removesuffix(end) in self._taken for end in SUFFIXES):
            family = f"{family}_{zlib.crc32(name.encode('utf-8', 'replace')):08x}"
        return Target(family, "A metric of the training program's own.", labels=(("metric", name),))

    def _find(self, name: str) -> tuple[Metric | None, tuple[str, ...]]:
        if name in self._exact:
            return self._exact[name], ()
        found = ((metric, match) for expression, metric in self._patterns if (match := expression.fullmatch(name)))
        metric, match = next(found, (None, None))
        return metric, match.groups() if match else ()


def _recorder_rank(name: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the name of a recorder's figure without its rank, and the rank as a label; other names are unchanged."""
    first, _, rest = name.partition("/")
    figure, _, rank = rest.partition("/rank")
    if first != PREFIX or figure not in OF_RANK or not (rank.isdecimal() or rest == figure):
        return name, ()
    return f"{first}/{figure}", (("rank", rank or "0"),)


def _declared(metric: Metric, instances: tuple[str, ...]) -> tuple[Target, ...]:
    """Return the targets of a declared metric; its instances replace each `*` of its name, in order."""
    documented = DOCUMENTED.get(metric.name)
    if documented is not None:
        instance = instances[0] if instances else "*"
        return tuple(
            target._replace(labels=tuple((label, value.replace("*", instance)) for label, value in target.labels))
            for target in documented
        )
    words: list[str] = []
    labels: list[tuple[str, str]] = []
    for word in metric.name.split("/"):
        if word != "*":
            words.append(word)
            continue
        before = words[-1] if words else "instance"
        label = INSTANCES.get(before, valid_name(before))
        labels.append((label, instances[len(labels)] if len(labels) < len(instances) else ""))
        if before not in SILENT and label != before:
            words.append(label)
    if words[0] == PREFIX:
        words = words[1:]
    name = valid_name("_".join(words))
    is_counter = metric.kind == vocabulary.COUNTER
    family = _with_unit(f"{PREFIX}_{name.removesuffix('_total') if is_counter else name}", metric.name, metric.unit)
    return (Target(family, metric.help, labels=tuple(labels), kind=COUNTER if is_counter else GAUGE),)


def _with_unit(family: str, name: str, unit: str) -> str:
    """Return the family's name with its unit at the end, unless the name has it already."""
    words = valid_name(unit.replace("/", "_per_")).lower() if unit.partition("/")[0] in UNITS else ""
    last = re.split(r"[/_]", name.removesuffix("_total"))
    spelled = {"mib": {"mb", "mib"}, "gib": {"gb", "gib"}, "milliseconds": {"ms"}}
    says = not words or words in valid_name(name) or bool(spelled.get(words, set()).intersection(last))
    return family if says else f"{family}_{words}"
