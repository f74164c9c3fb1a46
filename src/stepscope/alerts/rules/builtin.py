"""The rules that come with Stepscope: sober thresholds, and the remedy that one needs at three in the morning.

What to do is told in the words of the diagnosis (`core/remedies.py`): `KINDS` says which finding a rule is about.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.alerts.rules.expression import POINTS, STEPS, TIME, Window
from stepscope.alerts.rules.rule import CRITICAL, INFO, Escalation, Rule
from stepscope.core import thresholds
from stepscope.core.remedies import ALARMS, REMEDIES

if TYPE_CHECKING:
    from collections.abc import Mapping

THRESHOLDS: dict[str, float] = {one.name: one.default for one in thresholds.TABLE}
"""What the default profile has; ratios are 0 to 1, temperatures degrees Celsius."""

KINDS: dict[str, str] = {
    "loss_spike": "loss_spike",
    "loss_divergence": "divergence",
    "loss_increase": "divergence",
    "loss_plateau": "plateau",
    "not_finite": "non_finite",
    "gradient_exploding": "exploding_gradients",
    "gradient_not_finite": "non_finite/gradient",
    "gradient_vanishing": "vanishing_gradients",
    "learning_rate_too_high": "learning_rate/high",
    "learning_rate_too_low": "learning_rate/zero",
    "learning_rate_frozen": "learning_rate/zero",
    "data_starvation": "input_bound",
    "io_wait": "input_bound/disk",
    "io_pressure": "input_bound/disk",
    "straggler": "straggler",
    "gpu_underused": "gpu_idle",
    "gpu_temperature": "gpu_throttled/heat",
    "gpu_throttled": "gpu_throttled",
    "gpu_memory": "oom",
    "memory_pressure": "oom/host",
    "oom_kill": "oom/host",
    "memory_leak": "memory_leak",
    "gpu_memory_leak": "memory_leak",
    "disk_usage": "disk_full",
    "disk_filling": "disk_full",
    "death": "crash",
    "hang": "hang",
    "stall": "hang",
}
"""The finding, or the cause of one, whose remedy a rule tells; the others have their own in `ALARMS`."""

LOSSES = ("loss", "*/loss")
ALL_LOSSES = ("loss", "*/loss", "*_loss", "*/*_loss")
HOUR = 3600.0
SLOW_FOR = 30.0
"""Seconds for which steps must be slow: on a shared machine a moment of it says nothing."""
LEAST_WAIT = 0.003
"""Seconds of a step that waiting for data must take to be worth a word: the diagnosis has the same floor."""


def rules(limits: Mapping[str, float] | None = None) -> list[Rule]:
    """Return all rules with these thresholds, by name, in place of the defaults."""
    given = {**THRESHOLDS, **(limits or {})}
    found = [
        *_loss(given),
        *_gradients(given),
        *_learning_rate(given),
        *_own_metrics(),
        *_speed(given),
        *_gpu(given),
        *_load(given),
        *_memory(),
        *_ends(),
        *_faults(),
        *_own(),
    ]
    return [replace(rule, remedy=_remedy(rule.name)) for rule in found]


def _remedy(name: str) -> str:
    """Return what to do about a rule's alert, with its fields still in braces."""
    return REMEDIES[KINDS[name]] if name in KINDS else ALARMS[name]


def _loss(given: Mapping[str, float]) -> list[Rule]:
    return [
        Rule(
            "loss_spike",
            detect="spike",
            metric=LOSSES,
            over="mean",
            cooldown=0.0,
            help="The loss rises at once above what its own noise explains; known with the same or the next point.",
        ),
        Rule(
            "loss_divergence",
            detect="divergence",
            metric=LOSSES,
            over="mean",
            severity=CRITICAL,
            cooldown=HOUR,
            help="The loss has risen by half or more, undoes what was learned, and does not come back.",
        ),
        Rule(
            "not_finite",
            when="not finite(value)",
            metric=ALL_LOSSES,
            over="mean",
            severity=CRITICAL,
            cooldown=HOUR,
            message="{metric} is {shown} since step {step}",
            help="A loss is NaN or infinite.",
        ),
        Rule(
            "loss_increase",
            detect="rise",
            metric=LOSSES,
            over="mean",
            options={"rise": given["loss_increase"]},
            cooldown=HOUR,
            help="The loss has risen above what it had reached, by the given share and beyond its noise, and stays.",
        ),
        Rule(
            "loss_plateau",
            detect="plateau",
            metric=("loss",),
            over="mean",
            severity=INFO,
            options={"points": given["plateau_points"]},
            cooldown=6 * HOUR,
            help="The loss has not decreased for thousands of points.",
        ),
    ]


def _gradients(given: Mapping[str, float]) -> list[Rule]:
    exploded = given["grad_norm_exploded"]
    return [
        Rule(
            "gradient_exploding",
            when=f"grad_norm > {exploded:g} and grad_norm > 4 * baseline(grad_norm, 200, 5)",
            over="mean",
            lasting=Window(3, POINTS),
            clear=f"median(grad_norm, 20) < {exploded:g} or median(grad_norm, 20) < 2 * baseline(grad_norm, 200, 5)",
            cooldown=600.0,
            message=f"the gradient norm is {{shown}} for three points: above {exploded:g} and four times what it was",
            help="The gradient norm is above the threshold and four times its baseline, for three points.",
        ),
        Rule(
            "gradient_not_finite",
            when="not finite(grad_norm)",
            over="mean",
            lasting=Window(5, POINTS),
            severity=CRITICAL,
            cooldown=HOUR,
            message="the gradient norm is {shown} for five points, at step {step}",
            help="The gradient norm is NaN or infinite for five points: longer than a loss scaler needs.",
        ),
        Rule(
            "gradient_vanishing",
            when=f"max(grad_norm, 100) < {given['grad_norm_vanished']:g}",
            over="mean",
            cooldown=HOUR,
            message="the gradient norm has not exceeded {shown} for 100 points: the model no longer learns",
            help="The gradient norm is practically zero for 100 points.",
        ),
    ]


def _learning_rate(given: Mapping[str, float]) -> list[Rule]:
    low = given["learning_rate_too_low"]
    return [
        Rule(
            "learning_rate_too_high",
            when=f"learning_rate > {given['learning_rate_too_high']:g}",
            over="max",
            lasting=Window(10, POINTS),
            cooldown=HOUR,
            message="the learning rate is {shown}",
            help="The learning rate is above any that trains.",
        ),
        Rule(
            "learning_rate_too_low",
            when=f"max(learning_rate, 100) < {low:g}",
            over="max",
            cooldown=HOUR,
            message=f"the learning rate has been below {low:g} for 100 points: {{shown}}",
            help="The learning rate is too low to change anything, for 100 points.",
        ),
        Rule(
            "learning_rate_frozen",
            when="max(learning_rate, 1000) == min(learning_rate, 1000) and "
            "max(learning_rate, 1000) < 0.01 * highest(learning_rate)",
            over="max",
            severity=INFO,
            cooldown=HOUR,
            message="the learning rate stands at {shown}, below a hundredth of its highest, for 1 000 points",
            help="The learning rate no longer moves and is below a hundredth of its highest value.",
        ),
    ]


def _own_metrics() -> list[Rule]:
    return [
        Rule(
            "anomaly",
            detect="anomaly",
            metric=("own",),
            over="mean",
            severity=INFO,
            options={"score": 2.0},
            cooldown=HOUR,
            help="A metric of the program's own, such as a reward, has a value or a level that it has not had before.",
        ),
    ]


def _speed(given: Mapping[str, float]) -> list[Rule]:
    left = 1 - given["training_speed"]
    return [
        Rule(
            "training_speed",
            when=f"median(step_seconds, 20) > {1 / left:g} * baseline(step_seconds, 200, 20)",
            over="max",
            clear=f"median(step_seconds, 20) < {2 / (1 + left):g} * baseline(step_seconds, 200, 20)",
            lasting=Window(SLOW_FOR, TIME),
            cooldown=1800.0,
            message="a step takes {shown} (median of 20): training has lost "
            f"{given['training_speed']:.0%} of its speed or more",
            help="Steps take longer than before by the given loss of speed, for half a minute.",
        ),
        Rule(
            "data_starvation",
            when=f"mean(phase/data, 100) / mean(step_seconds, 100) > {given['data_wait']:g} "
            f"and mean(phase/data, 100) > {LEAST_WAIT:g}",
            over="max",
            clear=f"mean(phase/data, 100) / mean(step_seconds, 100) < {0.8 * given['data_wait']:g}",
            lasting=Window(100, STEPS),
            cooldown=HOUR,
            message="the training waits for data {value:.0%} of the time",
            help="Waiting for the next batch takes the given share of the step, and 3 ms or more, over 100 steps.",
        ),
        Rule(
            "straggler",
            detect="straggler",
            metric=("step_seconds",),
            options={"share": given["straggler"]},
            lasting=Window(2, POINTS),
            cooldown=HOUR,
            help="One rank works longer in a step than the others, who wait for it.",
        ),
    ]


def _gpu(given: Mapping[str, float]) -> list[Rule]:
    span = Window(given["machine_seconds"], TIME)
    idle = given["gpu_idle_seconds"]
    harmful = ("hw_thermal", "sw_thermal", "hw_slowdown", "power_brake")
    throttled = " or ".join(f"mean(gpu/*/throttle_{why}, 60s) > 0.5" for why in harmful)
    return [
        Rule(
            "gpu_underused",
            when=f"mean(gpu/*/utilization_ratio, {idle:g}s) < {given['gpu_utilization']:g}",
            hysteresis=0.1,
            cooldown=HOUR,
            message=f"GPU {{instance}} was busy {{shown}} of the last {idle / 60:g} min",
            help="A GPU is used less than the given share for minutes.",
        ),
        Rule(
            "gpu_memory",
            when=f"gpu/*/memory_used_bytes / gpu/*/memory_total_bytes > {given['gpu_memory']:g}",
            lasting=span,
            hysteresis=0.02,
            cooldown=HOUR,
            message="GPU {instance} has {value:.0%} of its memory in use",
            help="Memory of a card in use, as a share of its capacity.",
        ),
        Rule(
            "gpu_temperature",
            when=f"gpu/*/temperature_celsius > {given['gpu_temperature']:g}",
            lasting=span,
            hysteresis=0.05,
            cooldown=HOUR,
            message="GPU {instance} is at {shown}",
            help="A GPU is hot for a minute.",
        ),
        Rule(
            "gpu_throttled",
            when=throttled,
            cooldown=HOUR,
            message="GPU {instance} runs with lowered clocks most of the time: heat or power",
            help="A GPU lowers its clocks for heat or power in more than half of the samples of a minute.",
        ),
    ]


def _load(given: Mapping[str, float]) -> list[Rule]:
    span = Window(given["machine_seconds"], TIME)
    return [
        Rule(
            "cpu_usage",
            when=f"mean(cpu/usage_ratio, 60s) > {given['cpu_usage']:g}",
            lasting=span,
            hysteresis=0.05,
            severity=INFO,
            cooldown=HOUR,
            message="the processors are {shown} busy",
            help="All processors are busy for minutes.",
        ),
        Rule(
            "memory_pressure",
            when=f"memory/used_ratio > {given['memory_usage']:g}",
            lasting=Window(min(30.0, span.size), TIME),
            hysteresis=0.03,
            cooldown=1800.0,
            escalate=Escalation(1800.0),
            message="{shown} of the memory (of the container's limit, if there is one) is in use",
            help="Memory of the machine or of the container in use.",
        ),
        Rule(
            "io_wait",
            when=f"mean(cpu/iowait_ratio, 60s) > {given['io_wait']:g}",
            lasting=span,
            hysteresis=0.2,
            cooldown=HOUR,
            message="the processors wait for disks {shown} of the time",
            help="Processors wait for disks.",
        ),
        Rule(
            "io_pressure",
            when=f"mean(pressure/io_full_ratio, 60s) > {given['io_wait']:g}",
            lasting=span,
            hysteresis=0.2,
            cooldown=HOUR,
            message="everything on the machine waited for disks {shown} of the last minute",
            help="All tasks at once wait for disks (the kernel's pressure figures).",
        ),
        Rule(
            "disk_usage",
            when=f"disk/used_ratio > {given['disk_usage']:g}",
            lasting=Window(10, TIME),
            hysteresis=0.01,
            cooldown=HOUR,
            escalate=Escalation(1800.0),
            message="the disk of the run is {shown} full",
            help="The file system of the run is nearly full.",
        ),
    ]


def _memory() -> list[Rule]:
    return [
        Rule(
            "memory_leak",
            detect="leak",
            metric=("process/*/tree_memory_bytes",),
            cooldown=2 * HOUR,
            help="Memory of a rank's processes grows without end; tells the time that is left, critical below 2 hours.",
        ),
        Rule(
            "gpu_memory_leak",
            detect="gpu_leak",
            metric=("gpu/*/memory_allocated_bytes",),
            cooldown=2 * HOUR,
            help="Memory that the framework has allocated on a GPU grows without end; tells the time until it is full.",
        ),
        Rule(
            "disk_filling",
            detect="disk_full",
            metric=("disk/free_bytes",),
            cooldown=HOUR,
            help="The file system of the run will be full within 2 hours at the present rate.",
        ),
    ]


def _ends() -> list[Rule]:
    return [
        Rule(
            "death",
            event=("ended",),
            where={"state": ("failed", "killed", "oom-killed", "lost")},
            until=("running",),
            severity=CRITICAL,
            cooldown=0.0,
            message="rank {rank} has ended, {end}",
            help="A rank died; the message has the cause: exception, signal, out of memory.",
        ),
        Rule(
            "preempted",
            event=("ended",),
            where={"state": ("preempted",)},
            until=("running",),
            cooldown=0.0,
            message="rank {rank} was preempted: {cause}",
            help="The scheduler ended the job.",
        ),
        Rule(
            "hang",
            event=("hung",),
            until=("recovered", "ended", "running"),
            severity=CRITICAL,
            cooldown=0.0,
            message="rank {rank} hangs: {why}",
            help="No step ends any more and nothing moves.",
        ),
        Rule(
            "stall",
            event=("stalled",),
            until=("recovered", "ended", "running"),
            cooldown=600.0,
            message="rank {rank} stands still: {why}",
            help="No step has ended for much longer than usual.",
        ),
    ]


def _faults() -> list[Rule]:
    return [
        Rule(
            "gpu_lost",
            event=("gpu_lost",),
            until=("gpu_back",),
            same=("gpu",),
            severity=CRITICAL,
            cooldown=0.0,
            message="GPU {gpu} is lost: {reason}",
            help="A GPU has fallen off the bus.",
        ),
        Rule(
            "gpu_xid",
            event=("xid",),
            same=("gpu", "xid"),
            severity=CRITICAL,
            cooldown=600.0,
            message="GPU {gpu} reports Xid {xid}: {meaning}",
            help="The driver reports an error of a GPU.",
        ),
        Rule(
            "gpu_ecc",
            event=("ecc_uncorrected",),
            same=("gpu",),
            severity=CRITICAL,
            cooldown=600.0,
            message="GPU {gpu} has {errors} uncorrected memory errors",
            help="Memory of a GPU has errors that could not be corrected.",
        ),
        Rule(
            "oom_kill",
            event=("cgroup_oom_kill",),
            severity=CRITICAL,
            cooldown=60.0,
            message="the kernel killed {count} processes for memory",
            help="The kernel killed a process of the container: often a worker.",
        ),
    ]


def _own() -> list[Rule]:
    return [
        Rule(
            "sampler_blind",
            event=("sampler_failed",),
            until=("sampler_back",),
            same=("sampler",),
            cooldown=600.0,
            message="{sampler} cannot be sampled: {error}",
            help="A source of the machine fails.",
        ),
        Rule(
            "gpu_driver_hung",
            event=("gpu_driver_hung",),
            until=("gpu_driver_back",),
            severity=CRITICAL,
            cooldown=0.0,
            message="the GPU driver does not answer for {waited_seconds:.0f} s",
            help="The GPU driver does not answer.",
        ),
        Rule(
            "rows_dropped",
            when="rate(value, 30s) > 0",
            metric=("stepscope/drops_total", "stepscope/drops_total/*"),
            cooldown=1800.0,
            message="rows are lost: they come faster than the disk takes them",
            help="Rows were overwritten before they were written to disk.",
        ),
    ]
