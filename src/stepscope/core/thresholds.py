"""The thresholds of the built-in alert rules: one table for settings, rules and documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.kinds import DURATION, FLOAT, FRACTION, INTEGER, RISE
from stepscope.core.schema import Key

if TYPE_CHECKING:
    from stepscope.core.kinds import ValueKind

PREFIX = "alerting.thresholds."


class Threshold(NamedTuple):
    """One threshold of the default profile."""

    name: str
    kind: ValueKind
    default: float
    unit: str
    help: str
    minimum: float | None = None
    maximum: float | None = None

    @property
    def key(self) -> Key:
        """Return its setting."""
        return Key(
            PREFIX + self.name,
            self.kind,
            self.default,
            self.unit,
            self.help,
            minimum=self.minimum,
            maximum=self.maximum,
        )


TABLE = (
    Threshold("loss_increase", RISE, 0.1, "fraction", "rise of the loss above its baseline; `150%` is 1.5"),
    Threshold("training_speed", FRACTION, 0.5, "fraction", "drop in speed below the baseline", maximum=0.99),
    Threshold("grad_norm_exploded", FLOAT, 10.0, "", "gradient norm before clipping that counts as exploding", 1e-9),
    Threshold("grad_norm_vanished", FLOAT, 1e-7, "", "gradient norm that counts as vanishing", 0.0),
    Threshold("learning_rate_too_high", FLOAT, 1.0, "", "learning rate that counts as too high", 1e-9),
    Threshold("learning_rate_too_low", FLOAT, 1e-8, "", "learning rate that counts as too low", 0.0, 1.0),
    Threshold("gpu_utilization", FRACTION, 0.5, "fraction", "utilization below which a GPU counts as idle"),
    Threshold("gpu_memory", FRACTION, 0.95, "fraction", "GPU memory in use"),
    Threshold("gpu_temperature", FLOAT, 80.0, "celsius", "GPU temperature", 30.0, 150.0),
    Threshold("cpu_usage", FRACTION, 0.95, "fraction", "CPU utilization"),
    Threshold("memory_usage", FRACTION, 0.9, "fraction", "memory in use"),
    Threshold("io_wait", FRACTION, 0.3, "fraction", "share of CPU time spent waiting for disks"),
    Threshold("disk_usage", FRACTION, 0.95, "fraction", "use of the run's disk"),
    Threshold("data_wait", FRACTION, 0.3, "fraction", "share of a step spent waiting for data"),
    Threshold("straggler", FRACTION, 0.1, "fraction", "share of a step by which one rank is behind the others"),
    Threshold(
        "plateau_points", INTEGER, 2000, "points", "points without progress after which a loss counts as flat", 50
    ),
    Threshold("gpu_idle_seconds", DURATION, 300.0, "seconds", "period over which GPU utilization is averaged", 1.0),
    Threshold(
        "machine_seconds", DURATION, 60.0, "seconds", "period for which a machine metric must exceed its threshold", 1.0
    ),
)
"""Every threshold. A profile changes some, `alerting.thresholds.<name>` any; fractions are 0 to 1."""

BY_NAME = {one.name: one for one in TABLE}
