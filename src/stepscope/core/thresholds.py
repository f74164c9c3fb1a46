"""The thresholds of the built-in alert rules: one table for settings, rules and documentation."""

from __future__ import annotations

from stepscope.core.kinds import DURATION, FLOAT, FRACTION, INTEGER, RISE, Key

PREFIX = "alerting.thresholds."
_TABLE = (
    Key("loss_increase", RISE, 0.1, "rise of the loss above its baseline; `150%` is 1.5"),
    Key("training_speed", FRACTION, 0.5, "drop in speed below the baseline", 0.0, 0.99),
    Key("grad_norm_exploded", FLOAT, 10.0, "gradient norm before clipping that counts as exploding", 1e-9),
    Key("grad_norm_vanished", FLOAT, 1e-7, "gradient norm that counts as vanishing", 0.0),
    Key("learning_rate_too_high", FLOAT, 1.0, "learning rate that counts as too high", 1e-9),
    Key("learning_rate_too_low", FLOAT, 1e-8, "learning rate that counts as too low", 0.0, 1.0),
    Key("gpu_utilization", FRACTION, 0.5, "utilization below which a GPU counts as idle"),
    Key("gpu_memory", FRACTION, 0.95, "GPU memory in use"),
    Key("gpu_temperature", FLOAT.of("celsius"), 80.0, "GPU temperature", 30.0, 150.0),
    Key("cpu_usage", FRACTION, 0.95, "CPU utilization"),
    Key("memory_usage", FRACTION, 0.9, "memory in use"),
    Key("io_wait", FRACTION, 0.3, "share of CPU time spent waiting for disks"),
    Key("disk_usage", FRACTION, 0.95, "use of the run's disk"),
    Key("data_wait", FRACTION, 0.3, "share of a step spent waiting for data"),
    Key("straggler", FRACTION, 0.1, "share of a step by which one rank is behind the others"),
    Key("plateau_points", INTEGER.of("points"), 2000, "points without progress after which a loss counts as flat", 50),
    Key("gpu_idle_seconds", DURATION, 300.0, "period over which GPU utilization is averaged", 1.0),
    Key("machine_seconds", DURATION, 60.0, "period for which a machine metric must exceed its threshold", 1.0),
)
BY_NAME = {key.path: key._replace(path=PREFIX + key.path) for key in _TABLE}
"""Every threshold of the default profile. A profile changes some, `alerting.thresholds.<name>` any."""
