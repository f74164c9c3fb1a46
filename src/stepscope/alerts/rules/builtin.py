"""The built-in alert rules.

Their remedies are those of the diagnosis (`core/remedies.py`): `KINDS` maps each rule to its finding.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from stepscope.alerts.rules.expression import POINTS, STEPS, TIME, RuleWindow
from stepscope.alerts.rules.rule import CRITICAL, INFO, Escalation, Rule
from stepscope.core import thresholds
from stepscope.core.events import HANG_VERDICT
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

HELP = {
    "loss_spike": "The loss jumps above its own noise; detected at the same or the next point.",
    "loss_divergence": "The loss has risen by half or more, loses earlier progress, and does not recover.",
    "not_finite": "A loss is NaN or infinite.",
    "loss_increase": "The loss has risen above its best level, by the threshold and beyond its noise, and stays there.",
    "loss_plateau": "The loss has not decreased for thousands of points.",
    "gradient_exploding": "The gradient norm is above the threshold and four times its baseline, for three points.",
    "gradient_not_finite": (
        "The gradient norm is NaN or infinite for five points, longer than a loss scaler needs to recover."
    ),
    "gradient_vanishing": "The gradient norm is practically zero for 100 points.",
    "learning_rate_too_high": "The learning rate is too high to train.",
    "learning_rate_too_low": "The learning rate has been too low to have an effect for 100 points.",
    "learning_rate_frozen": "The learning rate no longer changes and is below 1 % of its highest value.",
    "anomaly": "A metric that you log, such as a reward, has a value or level that it has never had before.",
    "training_speed": "Speed has dropped by the threshold for half a minute.",
    "data_starvation": (
        "Waiting for data takes more than the threshold share of a step, and at least 3 ms, over 100 steps."
    ),
    "straggler": "All other ranks, on all nodes, wait for a rank in every step; the text has its cause and the cost.",
    "gpu_underused": "GPU utilization has been below the threshold for minutes.",
    "gpu_memory": "The share of GPU memory in use is above the threshold.",
    "gpu_temperature": "A GPU has been above the threshold temperature for a minute.",
    "gpu_throttled": "A GPU has reduced its clocks because of heat or power in more than half of a minute's samples.",
    "cpu_usage": "All CPUs have been busy for minutes.",
    "memory_pressure": "The share of memory in use, of the machine or the container, is above the threshold.",
    "io_wait": "The CPUs spend more than the threshold share of their time waiting for disks.",
    "io_pressure": "All tasks wait for disks at the same time (pressure stall information of the kernel).",
    "disk_usage": "The file system of the run is nearly full.",
    "memory_leak": "Memory of a rank's processes keeps growing; reports the time left, critical below 2 hours.",
    "gpu_memory_leak": (
        "Memory that the framework has allocated on a GPU keeps growing; reports the time until it is full."
    ),
    "disk_filling": "The file system of the run will be full within 2 hours at the current rate.",
    "death": "A rank died; the message has the cause: exception, signal or out of memory.",
    "preempted": "The scheduler ended the job.",
    "hang": "No step ends any more and the process makes no progress.",
    "stall": "No step has ended for much longer than usual.",
    "gpu_lost": "A GPU has fallen off the bus.",
    "gpu_xid": "The driver reports a GPU error (Xid).",
    "gpu_ecc": "GPU memory has uncorrectable errors.",
    "oom_kill": "The kernel killed a process of the container, often a worker, because memory ran out.",
    "sampler_blind": "A source of machine metrics fails.",
    "gpu_driver_hung": "The GPU driver does not answer.",
    "rows_dropped": "Rows were overwritten before they were written to disk.",
    "sink_behind": "A row has waited for a sink for more than 10 minutes.",
    "sink_refused": "A sink refuses rows for good.",
}
"""What each rule detects, for the documentation."""

LOSSES = ("loss", "*/loss")
ALL_LOSSES = ("loss", "*/loss", "*_loss", "*/*_loss")
HOUR = 3600.0
SLOW_FOR = 30.0
"""Seconds for which steps must be slow; on a shared machine a shorter slowdown means nothing."""
LATE_FOR = 15.0
"""Seconds for which the same rank must be late, in windows of 20 s, and on time before the alert resolves."""
LEAST_WAIT = 0.003
"""Seconds per step below which waiting for data is not reported; the diagnosis has the same floor."""

SINK_BEHIND, SINK_LATE = "sink_behind", 600.0
"""The rule to whose text the watcher adds the sink's reason, and how late a sink may be, in seconds."""

_hourly = partial(Rule, cooldown=HOUR)
_for_training = partial(_hourly, over="mean")
"""A rule on a value that all ranks log: evaluated on their mean."""


def rules(limits: Mapping[str, float] | None = None) -> list[Rule]:
    """Return all rules with these thresholds, by name, in place of the defaults."""
    given = {**THRESHOLDS, **(limits or {})}
    found = [*_loss(given), *_gradients(given), *_learning_rate(given), *_speed(given), *_gpu(given), *_load(given)]
    return [replace(rule, remedy=_remedy(rule.name), help=HELP[rule.name]) for rule in (*found, *MEMORY, *EVENTS)]


def _remedy(name: str) -> str:
    """Return what to do about a rule's alert, with its fields still in braces."""
    return REMEDIES[KINDS[name]] if name in KINDS else ALARMS[name]


def _loss(given: Mapping[str, float]) -> list[Rule]:
    rise, points = given["loss_increase"], given["plateau_points"]
    message = "{metric} has been {shown} since step {step}"
    return [
        _for_training("loss_spike", detect="spike", metric=LOSSES, cooldown=0.0),
        _for_training("loss_divergence", detect="divergence", metric=LOSSES, severity=CRITICAL),
        _for_training("not_finite", when="not finite(value)", metric=ALL_LOSSES, severity=CRITICAL, message=message),
        _for_training("loss_increase", detect="rise", metric=LOSSES, options={"rise": rise}),
        _for_training(
            "loss_plateau",
            detect="plateau",
            metric=("loss",),
            severity=INFO,
            options={"points": points},
            cooldown=6 * HOUR,
        ),
    ]


def _gradients(given: Mapping[str, float]) -> list[Rule]:
    exploded = given["grad_norm_exploded"]
    return [
        _for_training(
            "gradient_exploding",
            when=f"grad_norm > {exploded:g} and grad_norm > 4 * baseline(grad_norm, 200, 5)",
            lasting=RuleWindow(3, POINTS),
            clear=f"median(grad_norm, 20) < {exploded:g} or median(grad_norm, 20) < 2 * baseline(grad_norm, 200, 5)",
            cooldown=600.0,
            message=f"the gradient norm is {{shown}} for three points: above {exploded:g} and four times its baseline",
        ),
        _for_training(
            "gradient_not_finite",
            when="not finite(grad_norm)",
            lasting=RuleWindow(5, POINTS),
            severity=CRITICAL,
            message="the gradient norm has been {shown} for five points, at step {step}",
        ),
        _for_training(
            "gradient_vanishing",
            when=f"max(grad_norm, 100) < {given['grad_norm_vanished']:g}",
            message="the gradient norm has not exceeded {shown} for 100 points: the model no longer learns",
        ),
    ]


def _learning_rate(given: Mapping[str, float]) -> list[Rule]:
    low = given["learning_rate_too_low"]
    return [
        _hourly(
            "learning_rate_too_high",
            when=f"learning_rate > {given['learning_rate_too_high']:g}",
            over="max",
            lasting=RuleWindow(10, POINTS),
            message="the learning rate is {shown}",
        ),
        _hourly(
            "learning_rate_too_low",
            when=f"max(learning_rate, 100) < {low:g}",
            over="max",
            message=f"the learning rate has been below {low:g} for 100 points: {{shown}}",
        ),
        _hourly(
            "learning_rate_frozen",
            when="max(learning_rate, 1000) == min(learning_rate, 1000) and "
            "max(learning_rate, 1000) < 0.01 * highest(learning_rate)",
            over="max",
            severity=INFO,
            message="the learning rate has been constant at {shown}, below 1 % of its highest value, for 1 000 points",
        ),
        _for_training("anomaly", detect="anomaly", metric=("own",), severity=INFO, options={"score": 2.0}),
    ]


def _speed(given: Mapping[str, float]) -> list[Rule]:
    left, wait = 1 - given["training_speed"], given["data_wait"]
    lost = format_share(given["training_speed"])
    waiting = "mean(phase/data, 100) / mean(step_seconds, 100)"
    return [
        _hourly(
            "training_speed",
            when=f"median(step_seconds, 20) > {1 / left:g} * baseline(step_seconds, 200, 20)",
            over="max",
            clear=f"median(step_seconds, 20) < {2 / (1 + left):g} * baseline(step_seconds, 200, 20)",
            lasting=RuleWindow(SLOW_FOR, TIME),
            cooldown=1800.0,
            message=f"a step takes {{shown}} (median of 20): training has lost {lost} of its speed or more",
        ),
        _hourly(
            "data_starvation",
            when=f"{waiting} > {wait:g} and mean(phase/data, 100) > {LEAST_WAIT:g}",
            over="max",
            clear=f"{waiting} < {0.8 * wait:g}",
            lasting=RuleWindow(100, STEPS),
            message="training waits for data {shown} of the time",
        ),
        _hourly(
            "straggler",
            detect="straggler",
            metric=("step_seconds",),
            options={"share": given["straggler"]},
            lasting=RuleWindow(LATE_FOR, TIME),
            keep=RuleWindow(LATE_FOR, TIME),
        ),
    ]


def _gpu(given: Mapping[str, float]) -> list[Rule]:
    idle = given["gpu_idle_seconds"]
    lasting = partial(_hourly, lasting=RuleWindow(given["machine_seconds"], TIME))
    harmful = ("hw_thermal", "sw_thermal", "hw_slowdown", "power_brake")
    return [
        _hourly(
            "gpu_underused",
            when=f"mean(gpu/*/utilization_ratio, {idle:g}s) < {given['gpu_utilization']:g}",
            hysteresis=0.1,
            message=f"GPU {{instance}} was busy {{shown}} of the last {idle / 60:g} min",
        ),
        lasting(
            "gpu_memory",
            when=f"gpu/*/memory_used_bytes / gpu/*/memory_total_bytes > {given['gpu_memory']:g}",
            hysteresis=0.02,
            message="GPU {instance} has {shown} of its memory in use",
        ),
        lasting(
            "gpu_temperature",
            when=f"gpu/*/temperature_celsius > {given['gpu_temperature']:g}",
            hysteresis=0.05,
            message="GPU {instance} is at {shown}",
        ),
        _hourly(
            "gpu_throttled",
            when=" or ".join(f"mean(gpu/*/throttle_{why}, 60s) > 0.5" for why in harmful),
            message="GPU {instance} runs at reduced clocks most of the time because of heat or power",
        ),
    ]


def _load(given: Mapping[str, float]) -> list[Rule]:
    seconds = given["machine_seconds"]
    lasting = partial(_hourly, lasting=RuleWindow(seconds, TIME))
    return [
        lasting(
            "cpu_usage",
            when=f"mean(cpu/usage_ratio, 60s) > {given['cpu_usage']:g}",
            hysteresis=0.05,
            severity=INFO,
            message="the CPUs are {shown} busy",
        ),
        _hourly(
            "memory_pressure",
            when=f"memory/used_ratio > {given['memory_usage']:g}",
            lasting=RuleWindow(min(30.0, seconds), TIME),
            hysteresis=0.03,
            cooldown=1800.0,
            escalate=Escalation(1800.0),
            message="{shown} of the memory (of the container's limit, if there is one) is in use",
        ),
        lasting(
            "io_wait",
            when=f"mean(cpu/iowait_ratio, 60s) > {given['io_wait']:g}",
            hysteresis=0.2,
            message="the CPUs wait for disks {shown} of the time",
        ),
        lasting(
            "io_pressure",
            when=f"mean(pressure/io_full_ratio, 60s) > {given['io_wait']:g}",
            hysteresis=0.2,
            message="everything on the machine waited for disks {shown} of the last minute",
        ),
        _hourly(
            "disk_usage",
            when=f"disk/used_ratio > {given['disk_usage']:g}",
            lasting=RuleWindow(10, TIME),
            hysteresis=0.01,
            escalate=Escalation(1800.0),
            message="the disk of the run is {shown} full",
        ),
    ]


MEMORY = (
    Rule("memory_leak", detect="leak", metric=("process/*/tree_memory_bytes",), cooldown=2 * HOUR),
    Rule("gpu_memory_leak", detect="gpu_leak", metric=("gpu/*/memory_allocated_bytes",), cooldown=2 * HOUR),
    _hourly("disk_filling", detect="disk_full", metric=("disk/free_bytes",)),
)
"""Rules on memory and disk space that run out."""

_at_once = partial(Rule, cooldown=0.0)
_every_ten_minutes = partial(Rule, cooldown=600.0)
_DEAD = ("failed", "killed", "oom-killed", "lost")
_GOES_ON = ("recovered", "ended", "running")
_HANGS = ("never_arrived", "desynchronised", "collective_stuck", "dead_rank", "outside_torch")
"""Verdicts on several ranks. Their own events only announce that a verdict follows, so that one hang is one alert."""
EVENTS = (
    _at_once(
        "death",
        event=("ended",),
        where={"state": _DEAD},
        until=("running",),
        severity=CRITICAL,
        message="rank {rank} has ended, {end}",
    ),
    _at_once(
        "preempted",
        event=("ended",),
        where={"state": ("preempted",)},
        until=("running",),
        message="rank {rank} was preempted: {cause}",
    ),
    _at_once(
        "hang",
        event=("hung", HANG_VERDICT),
        where={"verdict_follows": (None,), "verdict": (None, *_HANGS)},
        until=(*_GOES_ON, HANG_VERDICT),
        severity=CRITICAL,
        message="rank {rank} hangs: {why}",
    ),
    _every_ten_minutes(
        "stall",
        event=("stalled", HANG_VERDICT),
        where={"verdict_follows": (None,), "verdict": (None, "unknown")},
        until=(*_GOES_ON, HANG_VERDICT),
        message="rank {rank} is stalled: {why}",
    ),
    _at_once(
        "gpu_lost",
        event=("gpu_lost",),
        until=("gpu_back",),
        same=("gpu",),
        severity=CRITICAL,
        message="GPU {gpu} is lost: {reason}",
    ),
    _every_ten_minutes(
        "gpu_xid",
        event=("xid",),
        same=("gpu", "xid"),
        severity=CRITICAL,
        message="GPU {gpu} reports Xid {xid}: {meaning}",
    ),
    _every_ten_minutes(
        "gpu_ecc",
        event=("ecc_uncorrected",),
        same=("gpu",),
        severity=CRITICAL,
        message="GPU {gpu} has {errors} uncorrected memory errors",
    ),
    Rule(
        "oom_kill",
        event=("cgroup_oom_kill",),
        severity=CRITICAL,
        cooldown=60.0,
        message="the kernel killed {count} processes because memory ran out",
    ),
    _every_ten_minutes(
        "sampler_blind",
        event=("sampler_failed",),
        until=("sampler_back",),
        same=("sampler",),
        message="{sampler} cannot be sampled: {error}",
    ),
    _at_once(
        "gpu_driver_hung",
        event=("gpu_driver_hung",),
        until=("gpu_driver_back",),
        severity=CRITICAL,
        message="the GPU driver has not answered for {waited_seconds:.0f} s",
    ),
    Rule(
        "rows_dropped",
        when="rate(value, 30s) > 0",
        metric=("stepscope/drops_total", "stepscope/drops_total/*"),
        cooldown=1800.0,
        message="rows are lost: they arrive faster than they can be written to disk",
    ),
    _hourly(
        SINK_BEHIND,
        when=f"stepscope/sink/*/behind_seconds > {SINK_LATE:g}",
        hysteresis=0.5,
        message="sink {instance} is {shown} behind",
    ),
    _hourly(
        "sink_refused",
        when="rate(stepscope/sink/*/refused_rows, 60s) > 0",
        message="sink {instance} refuses rows, {last:.0f} so far",
    ),
)
"""Rules on events of the run: ends, hangs, faults of GPUs, and our own faults."""
