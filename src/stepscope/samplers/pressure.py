"""Pressure stall information: the share of time in which tasks waited for CPUs, memory or disks."""

from __future__ import annotations

from pathlib import Path

from stepscope.core.vocabulary import gauge
from stepscope.samplers.kernel import Growth, KernelFile, number
from stepscope.samplers.sampler import Sampler

# "full" CPU pressure is undefined for a whole machine: the kernel writes 0 there, which would be a lie.
KINDS = {"cpu": ("some",), "memory": ("some", "full"), "io": ("some", "full")}
WHO = {"some": "at least one task", "full": "every task"}
WHAT = {"cpu": "a CPU", "memory": "memory", "io": "a disk"}

METRICS = tuple(
    metric
    for source, kinds in KINDS.items()
    for kind in kinds
    for metric in (
        gauge(
            f"pressure/{source}_{kind}_ratio", f"Share of the last 10 s in which {WHO[kind]} waited for {WHAT[source]}."
        ),
        gauge(
            f"pressure/{source}_{kind}_stalled_ratio",
            f"Seconds per second, since the last sample, in which {WHO[kind]} waited for {WHAT[source]}.",
        ),
    )
)


def parse_pressure(data: bytes) -> dict[str, tuple[float, int]]:
    """Return (share of the last 10 s, total in µs) by kind, from a /proc/pressure file."""
    found = {}
    for line in data.splitlines():
        kind, *words = line.split()
        fields = dict(word.split(b"=", 1) for word in words if b"=" in word)
        if b"avg10" in fields and b"total" in fields:
            found[kind.decode("ascii", "replace")] = (float(fields[b"avg10"]) / 100, number(fields[b"total"]))
    return found


class PressureSampler(Sampler):
    """Read /proc/pressure below `root`."""

    name = "pressure"
    metrics = METRICS

    def __init__(self, root: Path = Path("/")) -> None:
        self._folder = root / "proc" / "pressure"
        self._files = {source: KernelFile(f"{self._folder}/{source}") for source in KINDS}
        self._growth = Growth()
        self._missing: dict[str, str] = {}

    def sample(self, now: int) -> dict[str, float]:
        """Return the shares of time spent waiting; `now` is monotonic time in ns."""
        values: dict[str, float] = {}
        for source, file in self._files.items():
            if source in self._missing:
                continue
            try:
                found = parse_pressure(file.read())
            except OSError as error:  # the kernel answers "not supported" if PSI is disabled
                self._missing[source] = error.strerror or str(error)
                continue
            for kind in KINDS[source]:
                if kind in found:
                    share, total = found[kind]
                    values[f"pressure/{source}_{kind}_ratio"] = share
                    rate = self._growth.of(f"{source}_{kind}", (total,), now)
                    if rate is not None:
                        values[f"pressure/{source}_{kind}_stalled_ratio"] = rate[0] / 1e6
        return values

    def absent(self) -> dict[str, str]:
        """Return why there is no pressure: the kernel does not support it, or it is disabled."""
        remedy = "boot with psi=1 on Linux 4.20 or newer"
        if not self._folder.exists():
            return {"pressure": f"no /proc/pressure; {remedy}"}
        return {f"pressure/{source}_*": f"{reason}; {remedy}" for source, reason in self._missing.items()}
