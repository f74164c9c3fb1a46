"""GPUs of Intel and Apple: the few values available without root, and why there are no more."""

from __future__ import annotations

import sys
from pathlib import Path

from stepscope.core.vocabulary import gauge
from stepscope.samplers.kernel import find_number, graphics_cards
from stepscope.samplers.sampler import Sampler

INTEL = "0x8086"

METRICS = (gauge("gpu/intel/*/clock_hertz", "Clock of an Intel GPU, by card number."),)


class OtherGpuSampler(Sampler):
    """Read the clock of Intel GPUs below `root`; for other GPUs, explain why there are no values."""

    name = "other_gpus"
    metrics = METRICS

    def __init__(self, root: Path = Path("/"), platform: str = sys.platform) -> None:
        """Read the machine whose /sys is below `root`; `platform` is a value of `sys.platform`."""
        self._platform = platform
        self._clocks = {card: f"{folder}/gt_act_freq_mhz" for card, folder in graphics_cards(root, INTEL).items()}

    def sample(self, now: int) -> dict[str, float]:
        """Return the clocks of Intel GPUs."""
        del now
        readings = {card: find_number(path) for card, path in self._clocks.items()}
        return {f"gpu/intel/{card}/clock_hertz": mega * 1e6 for card, mega in readings.items() if mega is not None}

    def absent(self) -> dict[str, str]:
        """Return why these GPUs provide so little."""
        if self._platform == "darwin":
            return {"gpu": "macOS does not report GPU use without root; run `sudo powermetrics` to see it"}
        if self._clocks:
            return {"gpu/intel": "the kernel counts use of Intel GPUs for root only; `sudo intel_gpu_top` shows it"}
        return {}
