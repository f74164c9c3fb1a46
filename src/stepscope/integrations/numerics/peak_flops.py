"""What processors and GPUs can do at most: dense floating-point operations a second, as their makers state them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

T = 1e12
GPUS: tuple[tuple[str, Mapping[str, float]], ...] = (
    ("GB200", {"half": 2500 * T, "tf32": 1250 * T, "float32": 80 * T}),
    ("B200", {"half": 2250 * T, "tf32": 1125 * T, "float32": 75 * T}),
    ("H200", {"half": 989.4 * T, "tf32": 494.7 * T, "float32": 66.9 * T}),
    ("H100 NVL", {"half": 835.5 * T, "tf32": 417.5 * T, "float32": 60 * T}),
    ("H100 PCIe", {"half": 756 * T, "tf32": 378 * T, "float32": 51 * T}),
    ("H100", {"half": 989.4 * T, "tf32": 494.7 * T, "float32": 66.9 * T}),
    ("A100", {"half": 312 * T, "tf32": 156 * T, "float32": 19.5 * T}),
    ("A10G", {"half": 70 * T, "tf32": 35 * T, "float32": 31.5 * T}),
    ("A10", {"half": 125 * T, "tf32": 62.5 * T, "float32": 31.2 * T}),
    ("A40", {"half": 149.7 * T, "tf32": 74.8 * T, "float32": 37.4 * T}),
    ("RTX A6000", {"half": 154.8 * T, "tf32": 77.4 * T, "float32": 38.7 * T}),
    ("L40S", {"half": 362 * T, "tf32": 183 * T, "float32": 91.6 * T}),
    ("L4", {"half": 121 * T, "tf32": 60 * T, "float32": 30.3 * T}),
    ("RTX 4090", {"half": 165.2 * T, "tf32": 82.6 * T, "float32": 82.6 * T}),
    ("RTX 3090", {"half": 71 * T, "tf32": 35.6 * T, "float32": 35.6 * T}),
    ("V100", {"half": 125 * T, "float32": 15.7 * T}),
    ("T4", {"half": 65 * T, "float32": 8.1 * T}),
    ("MI300X", {"half": 1307.4 * T, "tf32": 653.7 * T, "float32": 163.4 * T}),
    ("MI250X", {"half": 191.5 * T, "float32": 47.9 * T}),
)
"""By a part of the device's name, the more special first. MI250X: one of its two dies, which is what a process sees."""
FIELDS = {"bfloat16": "half", "float16": "half", "float32": "float32"}
PER_CYCLE = (("avx512f", 64), ("avx2", 32), ("avx", 16), ("asimd", 16))
"""32-bit operations of one core and cycle, with the widest instructions it has."""


def gpu_peak(name: str, dtype: str = "bfloat16", *, tf32: bool = False) -> float | None:
    """Return the peak of a GPU, in operations a second; None for one that is not in the table.

    Args:
        name: as the driver gives it.
        dtype: of the matrix products: bfloat16, float16 or float32.
        tf32: whether float32 products may use TF32.
    """
    field = "tf32" if dtype == "float32" and tf32 else FIELDS.get(dtype)
    for part, peaks in GPUS:
        if part.lower() in name.lower():
            return peaks.get(field) if field else None
    return None


def cpu_peak(facts: str, threads: int) -> float | None:
    """Return about the 32-bit peak of some cores, in operations a second, from the text of /proc/cpuinfo.

    An estimate: the stated or current clock times what the widest instructions do in a cycle. None if it cannot be
    told.
    """
    fields: dict[str, str] = {}
    hertz = 0.0
    for line in facts.splitlines():
        key, colon, value = (part.strip() for part in line.partition(":"))
        if colon:
            fields.setdefault(key.lower(), value)
            if key.lower() == "cpu mhz":
                hertz = max(hertz, float(value) * 1e6)
    flags = (fields.get("flags") or fields.get("features") or "").split()
    width = next((width for flag, width in PER_CYCLE if flag in flags), 0)
    stated = fields.get("model name", "").rpartition("@")[2].strip().lower().removesuffix("ghz")
    with_clock = float(stated) * 1e9 if stated.replace(".", "", 1).isdigit() else hertz
    return width * with_clock * threads or None
