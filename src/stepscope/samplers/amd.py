"""AMD GPUs, from the amdgpu driver's files in /sys; the metrics are named like those of NVIDIA GPUs."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.samplers.kernel import KernelFile, entries, find_number, find_text, graphics_cards
from stepscope.samplers.nvidia_metrics import AGGREGATES, aggregated
from stepscope.samplers.nvidia_metrics import METRICS as GPU_METRICS
from stepscope.samplers.sampler import Sampler

AMD = "0x1002"
LOST = "its files in /sys are gone"
LOST_REMEDY = "the kernel log (dmesg | grep amdgpu) says why; the machine needs a reset of the GPU or a restart"
EACH = {
    *("utilization_ratio", "memory_busy_ratio", "memory_used_bytes", "memory_total_bytes", "temperature_celsius"),
    *("memory_temperature_celsius", "power_watts", "power_limit_watts", "fan_ratio", "sm_clock_hertz"),
    "memory_clock_hertz",
}
"""The values of one GPU."""
_NAMES = {*(f"gpu/*/{name}" for name in EACH), *(name for name, _, _ in AGGREGATES), "gpu/count"}
METRICS = tuple(metric for metric in GPU_METRICS if metric.name in _NAMES)


class AmdCard:
    """One GPU: its files by metric."""

    def __init__(self, index: int, folder: str) -> None:
        """Find the files of the device in `folder`; `index` is its number among GPUs."""
        self.index, self.folder = index, folder
        self.lost = False
        # The files of the driver, with the factor from their unit to ours.
        self.readings = {
            name: (KernelFile(path), scale) for name, (path, scale) in _files(folder).items() if os.path.exists(path)
        }

    def sample(self) -> dict[str, float]:
        """Return the driver's current values, without the GPU's prefix; a sleeping card has few."""
        found = {name: (file.find_number(), scale) for name, (file, scale) in self.readings.items()}
        return {name: value * scale for name, (value, scale) in found.items() if value is not None}

    def gone(self) -> bool:
        """Return whether the device has left the bus."""
        return not os.path.exists(f"{self.folder}/vendor")


def _files(folder: str) -> dict[str, tuple[str, float]]:
    monitor = next((f"{folder}/hwmon/{name}" for name in entries(f"{folder}/hwmon")), "")
    labels = _labels(monitor)
    heat = labels.get("edge") or labels.get("junction") or "temp1"
    power = "power1_average" if os.path.exists(f"{monitor}/power1_average") else "power1_input"
    found = {
        "utilization_ratio": (f"{folder}/gpu_busy_percent", 0.01),
        "memory_busy_ratio": (f"{folder}/mem_busy_percent", 0.01),
        "memory_used_bytes": (f"{folder}/mem_info_vram_used", 1.0),
        "memory_total_bytes": (f"{folder}/mem_info_vram_total", 1.0),
    }
    if not monitor:
        return found
    return found | {
        "temperature_celsius": (f"{monitor}/{heat}_input", 1e-3),
        "memory_temperature_celsius": (f"{monitor}/{labels.get('mem', 'temp3')}_input", 1e-3),
        "power_watts": (f"{monitor}/{power}", 1e-6),
        "power_limit_watts": (f"{monitor}/power1_cap", 1e-6),
        "fan_ratio": _fan(monitor),
        "sm_clock_hertz": (f"{monitor}/{labels.get('sclk', 'freq1')}_input", 1.0),
        "memory_clock_hertz": (f"{monitor}/{labels.get('mclk', 'freq2')}_input", 1.0),
    }


def _fan(monitor: str) -> tuple[str, float]:
    """Return the file and scale of the fan speed: revolutions if their maximum is known, else the duty cycle."""
    most = find_number(f"{monitor}/fan1_max")
    if most:
        return f"{monitor}/fan1_input", 1 / most
    return f"{monitor}/pwm1", 1 / (find_number(f"{monitor}/pwm1_max") or 255)


def _labels(monitor: str) -> dict[str, str]:
    """Return the sensors of a chip by their labels: {"junction": "temp2"}."""
    files = [name for name in entries(monitor) if name.endswith("_label")] if monitor else []
    return {find_text(f"{monitor}/{name}"): name.removesuffix("_label") for name in files}


def find_cards(root: Path = Path("/"), first: int = 0) -> list[AmdCard]:
    """Return the AMD GPUs in slot order, numbered from `first`."""
    devices = {number: f"{card}/device" for number, card in graphics_cards(root, AMD).items()}
    slots = {number: os.path.basename(os.path.realpath(device)) for number, device in devices.items()}
    ordered = sorted(devices, key=lambda number: (slots[number], number))
    return [AmdCard(index, devices[number]) for index, number in enumerate(ordered, first)]


class AmdSampler(Sampler):
    """Read the amdgpu driver's files below `root`."""

    name = "amd"
    metrics = METRICS

    def __init__(self, root: Path = Path("/"), first: int = 0) -> None:
        """Find the GPUs of the machine whose /sys is below `root`; they are numbered from `first`."""
        self._cards = find_cards(root, first)
        self._alone = first == 0

    def sample(self, now: int) -> dict[str, float]:
        """Return the values of each GPU and, if there are no GPUs of another vendor, their aggregates."""
        del now
        values: dict[str, float] = {}
        answered = []
        for card in self._cards:
            found = card.sample()
            if found:
                answered.append(found)
                card.lost = False
            elif not card.lost and card.gone():
                card.lost = True
                self._events += ({"kind": "gpu_lost", "gpu": card.index, "reason": LOST, "remedy": LOST_REMEDY},)
            values |= {f"gpu/{card.index}/{name}": value for name, value in found.items()}
        if answered and self._alone:
            values["gpu/count"] = float(len(answered))
            values |= aggregated(lambda name: [found[name] for found in answered if name in found])
        return values

    def absent(self) -> dict[str, str]:
        """Return why there is no AMD GPU, or which values each GPU lacks."""
        if not self._cards:
            return {"amd": "no AMD GPU with the amdgpu driver in /sys/class/drm; if there is one, load the driver"}
        reasons = {}
        for card in self._cards:
            for name in sorted(EACH - card.sample().keys()):
                reasons[f"gpu/{card.index}/{name}"] = "the amdgpu driver does not report it; nothing to do"
        return reasons
