"""Energy of a run: joules from counters or from power over time, split by class of time, and the CO₂.

A counter is exact, so it comes first; power is integrated between samples that are close enough. Time that no meter
covers is reported, never estimated.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.cost.ledger import CLASSES, merged
from stepscope.analysis.series.leak import LARGEST
from stepscope.analysis.series.robust import finite_pairs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import ArrayLike

    from stepscope.analysis.cost.ledger import Ledger
    from stepscope.core.arrays import Floats


JOULES_PER_KWH = 3.6e6
LONGEST_GAP = 30.0
"""Seconds between two samples of power that are bridged: thirty samples of the watcher's default of one a second."""


@dataclass(frozen=True)
class Meter:
    """Joules counted up to each time, from 0."""

    time: Floats
    joules: Floats

    def at(self, moments: Floats) -> Floats:
        """Return the joules counted up to the given times."""
        if not len(self.time):
            return np.zeros(len(moments))
        return np.interp(moments, self.time, self.joules)


def from_counter(time: ArrayLike, joules: ArrayLike) -> Meter:
    """Return the meter of a counter that only grows; a restart of the counter adds nothing."""
    when, what = finite_pairs(time, joules, LARGEST)
    return Meter(when, np.cumsum(np.maximum(0.0, np.diff(what, prepend=what[:1]))))


def from_power(time: ArrayLike, watts: ArrayLike) -> Meter:
    """Return the meter of samples of power: the area below the lines between them, without gaps that are too long."""
    when, what = finite_pairs(time, watts, LARGEST)
    apart = np.diff(when)
    areas = np.where(apart <= LONGEST_GAP, apart, 0.0) * (what[1:] + what[:-1]) / 2
    return Meter(when, np.cumsum(np.maximum(0.0, [0.0, *areas]))[: len(when)])


def split(ledger: Ledger, meters: Iterable[Meter]) -> dict[str, float]:
    """Return the joules of a run by class, the mean over the ranks.

    The joules that the meters counted in a span of the ledger are split like its time.
    """
    meters = list(meters)
    total = np.zeros(len(CLASSES))
    ranks = Counter(spans.number for spans in ledger.spans)
    for spans in ledger.spans:
        used = sum((meter.at(spans.end) - meter.at(spans.begin) for meter in meters), np.zeros(len(spans.end)))
        lasted = spans.end - spans.begin
        power = np.divide(used, lasted, out=np.zeros(len(used)), where=lasted > 0)
        total += (spans.table * power[:, None]).sum(axis=0) / ranks[spans.number]
    return dict(zip(CLASSES, total.tolist(), strict=True))


@dataclass(frozen=True)
class EnergyUse:
    """The energy of a run by class, and its source."""

    joules: dict[str, float]
    sources: tuple[str, ...]
    """The meters, by name."""
    covered_ratio: float
    """Share of the run's time that the meters saw."""
    grams_per_kwh: float | None = None
    region: str = ""

    @property
    def total_joules(self) -> float:
        """Joules in all."""
        return sum(self.joules.values())

    @property
    def kwh(self) -> float:
        """Kilowatt-hours in all."""
        return self.total_joules / JOULES_PER_KWH

    @property
    def co2_kg(self) -> float | None:
        """Kilograms of CO₂; None if the region is unknown."""
        return None if self.grams_per_kwh is None else self.kwh * self.grams_per_kwh / 1000

    def facts(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "joules": self.joules,
            "total_joules": self.total_joules,
            "kwh": self.kwh,
            "co2_kg": self.co2_kg,
            "grams_per_kwh": self.grams_per_kwh,
            "region": self.region,
            "sources": list(self.sources),
            "covered_ratio": self.covered_ratio,
        }


def measure(
    ledger: Ledger, meters: Sequence[tuple[str, Meter]], grams_per_kwh: float | None = None, region: str = ""
) -> EnergyUse | None:
    """Return the energy of a run from its meters by name; None if no meter has two samples.

    The same name on several nodes counts as one source. CO₂ is that of a kilowatt-hour in the region of the run.
    """
    used = [(name, meter) for name, meter in meters if len(meter.time) > 1]
    if not used or ledger.paid_seconds <= 0:
        return None
    names = sorted({name for name, _ in used})
    seen = min(_union([meter for other, meter in used if other == name]) for name in names)
    ratio = min(1.0, seen / ledger.paid_seconds)
    joules = split(ledger, [meter for _, meter in used])
    return EnergyUse(joules, tuple(names), ratio, grams_per_kwh, region)


def _union(meters: Sequence[Meter]) -> float:
    """Return the seconds in which at least one of some meters counted."""
    counted = merged([(float(meter.time[0]), float(meter.time[-1])) for meter in meters])
    return sum(last - first for first, last in counted)
