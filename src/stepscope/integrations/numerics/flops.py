"""Model FLOPs utilization (MFU): the operations of a step, counted once, divided by its time and the device's peak."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

from stepscope.integrations.numerics.activations import is_compiled
from stepscope.integrations.numerics.models import Models
from stepscope.integrations.walls import Failures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DEFINITION = (
    "mfu_ratio = FLOPs of the step / (seconds of the step x peak FLOP/s of this rank's device). FLOPs: matrix "
    "products, convolutions and attention of forward and backward, counted once by torch.utils.flop_counter on one "
    "step and scaled by the samples of each step; a multiply-add is two. Recomputation (activation checkpointing) is "
    "counted too."
)
FORMULAS = getattr(flop_counter, "flop_registry", None) or getattr(flop_counter, "flop_mapping", {})
"""The operations that torch counts; torch before 2.2 has the second name."""
WARM_UP = 3
"""Steps before the counted one."""

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
"""Peaks by a part of the device's name, the most specific first. MI250X: one of its two dies, as a process sees it."""
FIELDS = {"bfloat16": "half", "float16": "half", "float32": "float32"}
PER_CYCLE = (("avx512f", 64), ("avx2", 32), ("avx", 16), ("asimd", 16))
"""32-bit operations per core and cycle, by the widest instruction set."""


class OperationTypes(TorchDispatchMode):  # type: ignore[misc]
    """Record the type and device of the counted operations."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[tuple[str, Any], int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run every operation unchanged."""
        result = function(*args, **(kwargs or {}))
        if getattr(function, "overloadpacket", None) in FORMULAS:
            out = result[0] if isinstance(result, tuple) else result
            if isinstance(out, torch.Tensor):
                key = (str(out.dtype).removeprefix("torch."), out.device)
                self.seen[key] = self.seen.get(key, 0) + out.numel()
        return result


class Flops:
    """Count the operations of one step, and record the MFU of later ones; called around examined steps."""

    def __init__(
        self,
        run: Any,
        peak: float | None = None,
        flops: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
        warm_up: int = WARM_UP,
    ) -> None:
        """Record into `run`; `peak` is that of the device in FLOP/s, by default from the table.

        If the `flops` of one sample are given (of one step if samples are unknown), nothing is counted; otherwise one
        step after `warm_up` steps. `clock` returns seconds.
        """
        self._run, self._clock = run, clock
        self.peak, self.per_unit = peak, flops
        self._steps, self._warm_up = 0, warm_up
        self._modes: tuple[Any, Any] | None = None
        self._start: float | None = None
        self._models = Models()
        self._by_sample: bool | None = None
        self._done = False
        self.failures = Failures(run, "FLOPs")

    @property
    def counting(self) -> bool:
        """Return whether the current step is being counted, which makes it slower."""
        return self._modes is not None

    def attach(self, model: Any) -> None:
        """Add a model. If it is compiled, its operations are invisible and nothing is counted."""
        self._models.add(model)

    def step_begin(self) -> None:
        """Start a step, and count its operations after the warm-up, once."""
        if self.failures.over or not self._run.recording:
            return
        with self.failures.undoing(self.close):
            if not self._done and self._steps >= self._warm_up:
                self._begin()
            self._start = self._clock()

    def step_end(self, samples: float | None = None, step: int | None = None) -> None:
        """End a step with `samples`, which scale the FLOPs; `step` is its index, None for the current one."""
        if self.failures.over or not self._run.recording:
            return
        with self.failures.undoing(self.close):
            now, modes = self._clock(), self._modes
            if modes is not None:
                self._stop(modes, samples)
            elif self._start is not None and self.peak:
                flops = self._flops(samples)
                mfu = mfu_ratio(flops, now - self._start, self.peak) if flops else None
                if mfu is not None:
                    self._run.log({"mfu_ratio": mfu}, step=step)
            self._steps += 1
            self._start = None

    def close(self) -> None:
        """Stop counting."""
        modes, self._modes = self._modes, None
        if modes is not None:
            modes[1].__exit__(None, None, None)
            modes[0].__exit__(None, None, None)

    def _flops(self, samples: float | None) -> float | None:
        """Return the FLOPs of a step; None if unknown."""
        by_sample = samples is not None if self._by_sample is None else self._by_sample
        if self.per_unit is None or (by_sample and samples is None):
            return None
        return self.per_unit * (samples or 0.0) if by_sample else self.per_unit

    def _begin(self) -> None:
        self._done = True
        if self.per_unit is not None:
            self._settle({})
            return
        if any(is_compiled(part) for model in self._models for part in model.modules()):
            self._report("the model is compiled: its operations cannot be seen", "give flops= and peak=")
            return
        counter, types = flop_counter.FlopCounterMode(display=False), OperationTypes()
        counter.__enter__()
        types.__enter__()
        self._modes = counter, types

    def _stop(self, modes: tuple[Any, Any], samples: float | None) -> None:
        counter, types = modes
        self.close()
        total = counter.get_total_flops()
        if not total:
            self._report("no operation was counted", "give flops= and peak=")
            return
        self._by_sample = bool(samples)
        self.per_unit = total / samples if samples else float(total)
        self._settle(types.seen)

    def _settle(self, seen: dict[tuple[str, Any], int]) -> None:
        """Look up the peak, and record how MFU is defined."""
        dtype, device = max(seen, key=lambda key: seen[key]) if seen else ("float32", torch.device("cpu"))
        if self.peak is None and seen:
            self.peak = device_peak(dtype, device)
        if self.peak is None:
            self._report(f"the peak of this device for {dtype} is unknown", "give peak= in FLOP/s")
            return
        self._run.own_event(
            "flops_counted", flops=self.per_unit, peak=self.peak, dtype=dtype, device=str(device), definition=DEFINITION
        )

    def _report(self, cause: str, remedy: str) -> None:
        self._run.own_event("mfu_unavailable", cause=cause, remedy=remedy)


def mfu_ratio(flops: float, seconds: float, peak: float) -> float | None:
    """Return the used share of the peak; None if no time has passed or the peak is unknown."""
    return flops / (seconds * peak) if seconds > 0 and peak > 0 else None


def device_peak(dtype: str, device: Any) -> float | None:
    """Return the peak of the device that torch runs on, in FLOP/s; None if unknown."""
    if device.type == "cuda":
        tf32 = bool(getattr(torch.backends.cuda.matmul, "allow_tf32", False))
        return gpu_peak(torch.cuda.get_device_name(device), dtype, tf32=tf32)
    if device.type == "cpu" and dtype == "float32":
        try:
            with open("/proc/cpuinfo", encoding="utf-8") as file:
                return cpu_peak(file.read(), torch.get_num_threads())
        except (OSError, ValueError):  # not Linux, or an unusual machine
            return None
    return None


def gpu_peak(name: str, dtype: str = "bfloat16", *, tf32: bool = False) -> float | None:
    """Return the peak of the GPU with this driver name, in FLOP/s; None if it is not in the table.

    `dtype` is that of the matrix products; `tf32`: whether float32 products may use TF32.
    """
    field = "tf32" if dtype == "float32" and tf32 else FIELDS.get(dtype, "")
    peaks = next((peaks for part, peaks in GPUS if part.lower() in name.lower()), None)
    return None if peaks is None else peaks.get(field)


def cpu_peak(cpuinfo: str, threads: int) -> float | None:
    """Return an estimate of the 32-bit peak in FLOP/s, from the text of /proc/cpuinfo; None if unknown.

    It is the stated or current clock rate times the operations per cycle of the widest instructions.
    """
    fields: dict[str, str] = {}
    hertz = 0.0
    for line in cpuinfo.splitlines():
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
