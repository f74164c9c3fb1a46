"""The built-in alert rules.

Their remedies are those of the diagnosis (`core/remedies.py`): `KINDS` maps each rule to its finding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.alerts.rules.expression import POINTS, STEPS, TIME, RuleWindow
from stepscope.alerts.rules.rule import CRITICAL, INFO, Escalation, Rule
from stepscope.core import thresholds
from stepscope.core.numbers import format_share
from stepscope.core.remedies import ALARMS, REMEDIES

if TYPE_CHECKING:
    from collections.abc import Mapping

THRESHOLDS: dict[str, float] = {name: key.default for name, key in thresholds.BY_NAME.items()}
"""The values of the default profile; ratios are 0 to 1, temperatures degrees Celsius."""

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
"""The finding, or the cause of a finding, whose remedy a rule prints; the other rules have theirs in `ALARMS`."""

LOSSES = ("loss", "*/loss")
ALL_LOSSES = ("loss", "*/loss", "*_loss", "*/*_loss")
HOUR = 3600.0
SLOW_FOR = 30.0
"""Seconds for which steps must be slow; on a shared machine a shorter slowdown means nothing."""
LEAST_WAIT = 0.003
"""Seconds per step below which waiting for data is not reported; the diagnosis has the same floor."""


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
            help="The loss jumps above its own noise; detected at the same or the next point.",
        ),
        Rule(
            "loss_divergence",
            detect="divergence",
            metric=LOSSES,
            over="mean",
            severity=CRITICAL,
            cooldown=HOUR,
            help="The loss has risen by half or more, loses earlier progress, and does not recover.",
        ),
        Rule(
            "not_finite",
            when="not finite(value)",
            metric=ALL_LOSSES,
            over="mean",
            severity=CRITICAL,
            cooldown=HOUR,
            message="{metric} has been {shown} since step {step}",
            help="A loss is NaN or infinite.",
        ),
        Rule(
            "loss_increase",
            detect="rise",
            metric=LOSSES,
            over="mean",
            options={"rise": given["loss_increase"]},
            cooldown=HOUR,
            help="The loss has risen above its best level, by the threshold and beyond its noise, and stays there.",
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
            lasting=RuleWindow(3, POINTS),
            clear=f"median(grad_norm, 20) < {exploded:g} or median(grad_norm, 20) < 2 * baseline(grad_norm, 200, 5)",
            cooldown=600.0,
            message=f"the gradient norm is {{shown}} for three points: above {exploded:g} and four times its baseline",
            help="The gradient norm is above the threshold and four times its baseline, for three points.",
        ),
        Rule(
            "gradient_not_finite",
            when="not finite(grad_norm)",
            over="mean",
            lasting=RuleWindow(5, POINTS),
            severity=CRITICAL,
            cooldown=HOUR,
            message="the gradient norm has been {shown} for five points, at step {step}",
            help="The gradient norm is NaN or infinite for five points, longer than a loss scaler needs to recover.",
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
            lasting=RuleWindow(10, POINTS),
            cooldown=HOUR,
            message="the learning rate is {shown}",
            help="The learning rate is too high to train.",
        ),
        Rule(
            "learning_rate_too_low",
            when=f"max(learning_rate, 100) < {low:g}",
            over="max",
            cooldown=HOUR,
            message=f"the learning rate has been below {low:g} for 100 points: {{shown}}",
            help="The learning rate has been too low to have an effect for 100 points.",
        ),
        Rule(
            "learning_rate_frozen",
            when="max(learning_rate, 1000) == min(learning_rate, 1000) and "
            "max(learning_rate, 1000) < 0.01 * highest(learning_rate)",
            over="max",
            severity=INFO,
            cooldown=HOUR,
            message="the learning rate has been constant at {shown}, below 1 % of its highest value, for 1 000 points",
            help="The learning rate no longer changes and is below 1 % of its highest value.",
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
            help="A metric that you log, such as a reward, has a value or level that it has never had before.",
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
            lasting=RuleWindow(SLOW_FOR, TIME),
            cooldown=1800.0,
            message="a step takes {shown} (median of 20): training has lost "
            f"{format_share(given['training_speed'])} of its speed or more",
            help="Speed has dropped by the threshold for half a minute.",
        ),
        Rule(
            "data_starvation",
            when=f"mean(phase/data, 100) / mean(step_seconds, 100) > {given['data_wait']:g} "
            f"and mean(phase/data, 100) > {LEAST_WAIT:g}",
            over="max",
            clear=f"mean(phase/data, 100) / mean(step_seconds, 100) < {0.8 * given['data_wait']:g}",
            lasting=RuleWindow(100, STEPS),
            cooldown=HOUR,
            message="training waits for data {shown} of the time",
            help="Waiting for data takes more than the threshold share of a step, and at least 3 ms, over 100 steps.",
        ),
        Rule(
            "straggler",
            detect="straggler",
            metric=("step_seconds",),
            options={"share": given["straggler"]},
            lasting=RuleWindow(2, POINTS),
            cooldown=HOUR,
            help="One rank needs longer per step than the others, which wait for it.",
        ),
    ]


def _gpu(given: Mapping[str, float]) -> list[Rule]:
    span = RuleWindow(given["machine_seconds"], TIME)
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
            help="GPU utilization has been below the threshold for minutes.",
        ),
        Rule(
            "gpu_memory",
            when=f"gpu/*/memory_used_bytes / gpu/*/memory_total_bytes > {given['gpu_memory']:g}",
            lasting=span,
            hysteresis=0.02,
            cooldown=HOUR,
            message="GPU {instance} has {shown} of its memory in use",
            help="The share of GPU memory in use is above the threshold.",
        ),
        Rule(
            "gpu_temperature",
            when=f"gpu/*/temperature_celsius > {given['gpu_temperature']:g}",
            lasting=span,
            hysteresis=0.05,
            cooldown=HOUR,
            message="GPU {instance} is at {shown}",
            help="A GPU has been above the threshold temperature for a minute.",
        ),
        Rule(
            "gpu_throttled",
            when=throttled,
            cooldown=HOUR,
            message="GPU {instance} runs at reduced clocks most of the time because of heat or power",
            help="A GPU has reduced its clocks because of heat or power in more than half of a minute's samples.",
        ),
    ]


def _load(given: Mapping[str, float]) -> list[Rule]:
    span = RuleWindow(given["machine_seconds"], TIME)
    return [
        Rule(
            "cpu_usage",
            when=f"mean(cpu/usage_ratio, 60s) > {given['cpu_usage']:g}",
            lasting=span,
            hysteresis=0.05,
            severity=INFO,
            cooldown=HOUR,
            message="the CPUs are {shown} busy",
            help="All CPUs have been busy for minutes.",
        ),
        Rule(
            "memory_pressure",
            when=f"memory/used_ratio > {given['memory_usage']:g}",
            lasting=RuleWindow(min(30.0, span.size), TIME),
            hysteresis=0.03,
            cooldown=1800.0,
            escalate=Escalation(1800.0),
            message="{shown} of the memory (of the container's limit, if there is one) is in use",
            help="The share of memory in use, of the machine or the container, is above the threshold.",
        ),
        Rule(
            "io_wait",
            when=f"mean(cpu/iowait_ratio, 60s) > {given['io_wait']:g}",
            lasting=span,
            hysteresis=0.2,
            cooldown=HOUR,
            message="the CPUs wait for disks {shown} of the time",
            help="The CPUs spend more than the threshold share of their time waiting for disks.",
        ),
        Rule(
            "io_pressure",
            when=f"mean(pressure/io_full_ratio, 60s) > {given['io_wait']:g}",
            lasting=span,
            hysteresis=0.2,
            cooldown=HOUR,
            message="everything on the machine waited for disks {shown} of the last minute",
            help="All tasks wait for disks at the same time (pressure stall information of the kernel).",
        ),
        Rule(
            "disk_usage",
            when=f"disk/used_ratio > {given['disk_usage']:g}",
            lasting=RuleWindow(10, TIME),
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
            help="Memory of a rank's processes keeps growing; reports the time left, critical below 2 hours.",
        ),
        Rule(
            "gpu_memory_leak",
            detect="gpu_leak",
            metric=("gpu/*/memory_allocated_bytes",),
            cooldown=2 * HOUR,
            help="Memory that the framework has allocated on a GPU keeps growing; reports the time until it is full.",
        ),
        Rule(
            "disk_filling",
            detect="disk_full",
            metric=("disk/free_bytes",),
            cooldown=HOUR,
            help="The file system of the run will be full within 2 hours at the current rate.",
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
            help="A rank died; the message has the cause: exception, signal or out of memory.",
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
            help="No step ends any more and the process makes no progress.",
        ),
        Rule(
            "stall",
            event=("stalled",),
            until=("recovered", "ended", "running"),
            cooldown=600.0,
            message="rank {rank} is stalled: {why}",
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
            help="The driver reports a GPU error (Xid).",
        ),
        Rule(
            "gpu_ecc",
            event=("ecc_uncorrected",),
            same=("gpu",),
            severity=CRITICAL,
            cooldown=600.0,
            message="GPU {gpu} has {errors} uncorrected memory errors",
            help="GPU memory has uncorrectable errors.",
        ),
        Rule(
            "oom_kill",
            event=("cgroup_oom_kill",),
            severity=CRITICAL,
            cooldown=60.0,
            message="the kernel killed {count} processes because memory ran out",
            help="The kernel killed a process of the container, often a worker, because memory ran out.",
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
            help="A source of machine metrics fails.",
        ),
        Rule(
            "gpu_driver_hung",
            event=("gpu_driver_hung",),
            until=("gpu_driver_back",),
            severity=CRITICAL,
            cooldown=0.0,
            message="the GPU driver has not answered for {waited_seconds:.0f} s",
            help="The GPU driver does not answer.",
        ),
        Rule(
            "rows_dropped",
            when="rate(value, 30s) > 0",
            metric=("stepscope/drops_total", "stepscope/drops_total/*"),
            cooldown=1800.0,
            message="rows are lost: they arrive faster than they can be written to disk",
            help="Rows were overwritten before they were written to disk.",
        ),
    ]
