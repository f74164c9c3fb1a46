"""Power and temperature: energy counters (RAPL), power meters and thermometers (hwmon, thermal zones)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from stepscope.core.vocabulary import counter, gauge
from stepscope.samplers.kernel import KernelFile, entries, find_number, find_text, number
from stepscope.samplers.sampler import Sampler

SLOW_EVERY = 10_000_000_000
"""ns. A thermometer in a drive or on a bus is slow to answer; only the processors' are read each time."""
MOST_SENSORS = 32
CPU_CHIPS = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "x86_pkg_temp"})
GPU_CHIPS = frozenset({"amdgpu", "radeon", "nouveau", "nvidia", "i915", "xe"})
"""Chips that have their own samplers."""
PART = re.compile(r"core \d+|tccd\d+")
"""Labels of parts of a processor: reading one wakes it up, and the package sensor covers it."""
KELVIN = 273

METRICS = (
    gauge("power/cpu_watts", "Power draw of all CPU packages."),
    counter("power/cpu_joules_total", "Energy used by the CPUs since the watcher started."),
    gauge("power/dram_watts", "Power draw of the memory modules, if measured separately."),
    gauge("power/machine_watts", "Power draw of the whole machine, if it has a sensor."),
    gauge("power/*/watts", "Power at one sensor of the machine, by chip and label."),
    gauge("temperature/cpu_celsius", "Temperature of the hottest CPU."),
    gauge("temperature/*/celsius", "Temperature at one sensor of the machine, by chip and label."),
)


class Sensor(NamedTuple):
    """A file with one reading."""

    name: str
    """Its metric."""
    path: str
    scale: float
    """Factor from its unit to celsius or watts."""
    cpu: bool
    """Whether it is a processor's own thermometer, read each time."""


def slug(*words: str) -> str:
    """Return words as one segment of a metric name: `("coretemp", "Package id 0")` is `coretemp_package_id_0`."""
    return re.sub(r"[^a-z0-9]+", "_", " ".join(words).lower()).strip("_")


def grown(before: int, after: int, limit: int | None) -> int | None:
    """Return the growth of a counter that wraps to 0 after `limit`; None if it was reset otherwise."""
    if after >= before:
        return after - before
    return after - before + limit + 1 if limit and before <= limit else None


def find_sensors(root: Path = Path("/")) -> list[Sensor]:
    """Return the thermometers and power meters of the machine, processors first; GPUs have their own samplers."""
    found: dict[str, Sensor] = {}
    chips = set()
    folder = f"{root}/sys/class/hwmon"
    for entry in entries(folder):
        chip = find_text(f"{folder}/{entry}/name") or entry
        chips.add(chip)
        if chip not in GPU_CHIPS:
            for sensor in _sensors(chip, f"{folder}/{entry}"):
                _add(found, sensor)
    for sensor in _zones(f"{root}/sys/class/thermal", chips):
        _add(found, sensor)
    return sorted(found.values(), key=lambda sensor: not sensor.cpu)[:MOST_SENSORS]


def _add(found: dict[str, Sensor], sensor: Sensor) -> None:
    """Add a sensor; a second one of the same name gets a number."""
    group, middle, unit = sensor.name.split("/")
    name, copy = sensor.name, 1
    while name in found:
        copy += 1
        name = f"{group}/{middle}_{copy}/{unit}"
    found[name] = sensor._replace(name=name)


def _sensors(chip: str, folder: str) -> list[Sensor]:
    files = set(entries(folder))
    found = []
    for file in sorted(files):
        stem, _, kind = file.rpartition("_")
        label = find_text(f"{folder}/{stem}_label") if f"{stem}_label" in files else ""
        if re.fullmatch(r"temp\d+", stem) and kind == "input" and not PART.fullmatch(label.lower()):
            name = f"temperature/{slug(chip, label or stem)}/celsius"
            found.append(Sensor(name, f"{folder}/{file}", 1e-3, chip in CPU_CHIPS))
        elif re.fullmatch(r"power\d+", stem) and kind == ("average" if f"{stem}_average" in files else "input"):
            found.append(Sensor(f"power/{slug(chip, label or stem)}/watts", f"{folder}/{file}", 1e-6, cpu=False))
    return found


def _zones(folder: str, chips: set[str]) -> list[Sensor]:
    found = []
    for entry in entries(folder):
        kind = find_text(f"{folder}/{entry}/type") if entry.startswith("thermal_zone") else ""
        shown = kind in chips or kind.replace("-", "_") in chips or (kind == "x86_pkg_temp" and "coretemp" in chips)
        if kind and not shown:
            found.append(Sensor(f"temperature/{slug(kind)}/celsius", f"{folder}/{entry}/temp", 1e-3, kind in CPU_CHIPS))
    return found


class EnergyCounter:
    """One RAPL counter, read as watts."""

    def __init__(self, folder: str, kind: str) -> None:
        """Read the zone in `folder`; `kind` is cpu, dram or machine."""
        self.kind = kind
        self.file = KernelFile(f"{folder}/energy_uj")
        self._limit = find_number(f"{folder}/max_energy_range_uj")
        self._before: tuple[int, int] | None = None

    def sample(self, now: int) -> tuple[float, float] | None:
        """Return (watts, joules) since the last call; None at first and after a reset. `now` in ns."""
        total = number(self.file.read())
        before, self._before = self._before, (now, total)
        if before is None or now <= before[0]:
            return None
        microjoules = grown(before[1], total, self._limit)
        return None if microjoules is None else (microjoules * 1e3 / (now - before[0]), microjoules / 1e6)


def find_energy(root: Path = Path("/")) -> list[EnergyCounter]:
    """Return the RAPL zones that add up: packages, memory and the machine, each once."""
    folder = f"{root}/sys/class/powercap"
    kinds = {"package": "cpu", "dram": "dram", "psys": "machine"}
    # intel-rapl also covers AMD; intel-rapl-mmio repeats the same counters
    zones = [f"{folder}/{entry}" for entry in entries(folder) if re.fullmatch(r"intel-rapl(:\d+)+", entry)]
    found = ((zone, kinds.get(find_text(f"{zone}/name").partition("-")[0])) for zone in zones)
    return [EnergyCounter(zone, kind) for zone, kind in found if kind]


class PowerSampler(Sampler):
    """Read RAPL, hwmon and thermal zones below `root`."""

    name = "power"
    metrics = METRICS

    def __init__(self, root: Path = Path("/")) -> None:
        self._energy = find_energy(root)
        self._sensors = find_sensors(root)
        self._files = {sensor.name: KernelFile(sensor.path) for sensor in self._sensors}
        self._slow_due: int | None = None
        self._joules = 0.0
        self._refused = ""

    def sample(self, now: int) -> dict[str, float]:
        """Return watts since the last call and temperatures; `now` is monotonic time in ns."""
        values = self._power(now)
        slow = self._slow_due is None or now >= self._slow_due
        if slow:
            self._slow_due = now + SLOW_EVERY
        hottest: list[float] = []
        for sensor in self._sensors:
            if not (sensor.cpu or slow):
                continue
            value = self._files[sensor.name].find_number()
            if value is None or value * sensor.scale <= -KELVIN:  # the sensor is asleep or broken
                continue
            values[sensor.name] = value * sensor.scale
            if sensor.cpu:
                hottest.append(values[sensor.name])
        if hottest:
            values["temperature/cpu_celsius"] = max(hottest)
        return values

    def _power(self, now: int) -> dict[str, float]:
        watts: dict[str, float] = {}
        if self._refused:
            return watts
        for zone in self._energy:
            try:
                found = zone.sample(now)
            except PermissionError:
                self._refused = zone.file.path
                return {}
            except (OSError, ValueError):  # a processor that was taken offline
                found = None
            if found is not None:
                watts[f"power/{zone.kind}_watts"] = watts.get(f"power/{zone.kind}_watts", 0.0) + found[0]
                self._joules += found[1] if zone.kind == "cpu" else 0.0
        if "power/cpu_watts" in watts:
            watts["power/cpu_joules_total"] = self._joules
        return watts

    def absent(self) -> dict[str, str]:
        """Return which meters the machine lacks, or does not let us read."""
        reasons = {}
        for zone in self._energy:
            try:
                zone.file.read()
            except PermissionError:
                self._refused = zone.file.path
            except OSError as error:
                reasons["power/cpu_watts"] = f"{error}; ask the administrator"
        if self._refused:
            reasons["power/cpu_watts"] = f"only root may read {self._refused}; ask for `chmod o+r` on it"
        elif not self._energy:
            reasons["power/cpu_watts"] = "no RAPL counters in /sys/class/powercap; virtual machines seldom have them"
        if not any(sensor.name.startswith("temperature/") for sensor in self._sensors):
            reasons["temperature/*/celsius"] = "no thermometer in /sys/class/hwmon or thermal; ask the host"
        return reasons
