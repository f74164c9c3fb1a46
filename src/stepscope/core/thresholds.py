"""The thresholds of the built-in alert rules: one table, from which settings, rules and documentation are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.kinds import DURATION, FLOAT, FRACTION, INTEGER, RISE
from stepscope.core.schema import Key

if TYPE_CHECKING:
    from stepscope.core.kinds import Kind

PREFIX = "alerting.thresholds."


class Threshold(NamedTuple):
    """One threshold, as the default profile has it."""

    name: str
    kind: Kind
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
    Threshold("loss_increase", RISE, 0.1, "fraction", "rise of the loss over its baseline; `150%` is 1.5"),
    Threshold("training_speed", FRACTION, 0.5, "fraction", "loss of speed against the baseline", maximum=0.99),
    Threshold("grad_norm_exploded", FLOAT, 10.0, "", "gradient norm, before clipping, that counts as exploded", 1e-9),
    Threshold("grad_norm_vanished", FLOAT, 1e-7, "", "gradient norm below which nothing is learned", 0.0),
    Threshold("learning_rate_too_high", FLOAT, 1.0, "", "learning rate that counts as too high", 1e-9),
    Threshold("learning_rate_too_low", FLOAT, 1e-8, "", "learning rate that counts as too low", 0.0, 1.0),
    Threshold("gpu_utilization", FRACTION, 0.5, "fraction", "use of a GPU below which it idles"),
    Threshold("gpu_memory", FRACTION, 0.95, "fraction", "memory of a GPU in use"),
    Threshold("gpu_temperature", FLOAT, 80.0, "celsius", "temperature of a GPU", 30.0, 150.0),
    Threshold("cpu_usage", FRACTION, 0.95, "fraction", "use of the processors"),
    Threshold("memory_usage", FRACTION, 0.9, "fraction", "memory of the machine in use"),
    Threshold("io_wait", FRACTION, 0.3, "fraction", "time spent waiting for disks"),
    Threshold("disk_usage", FRACTION, 0.95, "fraction", "use of the run's file system"),
    Threshold("data_wait", FRACTION, 0.3, "fraction", "share of a step spent waiting for data"),
    Threshold("straggler", FRACTION, 0.1, "fraction", "share of a step by which one rank is behind the others"),
    Threshold("plateau_points", INTEGER, 2000, "points", "without progress after which a loss is flat", 50),
    Threshold("gpu_idle_seconds", DURATION, 300.0, "seconds", "over which the use of a GPU is averaged", 1.0),
    Threshold("machine_seconds", DURATION, 60.0, "seconds", "for which a figure of the machine must be high", 1.0),
)
"""Every threshold. A profile changes some, `alerting.thresholds.<name>` any; fractions are 0 to 1."""

BY_NAME = {one.name: one for one in TABLE}
