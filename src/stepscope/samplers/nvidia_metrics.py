"""The metrics of the NVIDIA sampler, and plain explanations of the driver's errors and missing values."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.vocabulary import BY_NAME, counter, gauge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

METRICS = (
    BY_NAME["gpu/*/utilization_ratio"],
    gauge("gpu/*/memory_busy_ratio", "Share of time in which the GPU memory was read or written."),
    BY_NAME["gpu/*/memory_used_bytes"],
    BY_NAME["gpu/*/memory_total_bytes"],
    gauge("gpu/*/own_memory_bytes", "GPU memory held by the run's processes."),
    gauge("gpu/*/other_memory_bytes", "GPU memory held by other processes."),
    BY_NAME["gpu/*/temperature_celsius"],
    gauge("gpu/*/memory_temperature_celsius", "GPU memory temperature."),
    BY_NAME["gpu/*/power_watts"],
    gauge("gpu/*/power_limit_watts", "GPU power limit."),
    counter("gpu/*/energy_joules_total", "Energy used by the GPU since the driver was loaded."),
    BY_NAME["gpu/*/fan_ratio"],
    gauge("gpu/*/sm_clock_hertz", "Clock of the GPU's multiprocessors (SM)."),
    gauge("gpu/*/memory_clock_hertz", "GPU memory clock."),
    gauge("gpu/*/throttle_power_cap", "1 while the clock is reduced to stay within the power limit."),
    gauge(
        "gpu/*/throttle_hw_slowdown",
        "1 while the hardware reduces the clock by half or more, because of heat or power.",
    ),
    gauge("gpu/*/throttle_sync_boost", "1 while the clock follows slower GPUs of its sync group."),
    gauge("gpu/*/throttle_sw_thermal", "1 while the driver reduces the clock because of heat."),
    gauge("gpu/*/throttle_hw_thermal", "1 while the hardware reduces the clock because of heat."),
    gauge("gpu/*/throttle_power_brake", "1 while the machine's power supply reduces the clock."),
    counter("gpu/*/ecc_corrected_errors_total", "Corrected memory errors since the driver was loaded.", "errors"),
    counter("gpu/*/ecc_uncorrected_errors_total", "Uncorrectable memory errors since the driver was loaded.", "errors"),
    counter("gpu/*/remapped_rows_corrected_total", "Memory rows remapped after corrected errors.", "rows"),
    counter("gpu/*/remapped_rows_uncorrected_total", "Memory rows remapped after uncorrectable errors.", "rows"),
    gauge("gpu/*/remapped_rows_pending", "1 while row remapping waits for a GPU reset."),
    gauge("gpu/*/remapped_rows_failed", "1 if remapping failed because the GPU has no spare rows left."),
    counter("gpu/*/pcie_replays_total", "PCIe packets that were sent again.", "packets"),
    gauge(
        "gpu/*/pcie_sent_bytes_per_second",
        "Bytes per second that the GPU sent over PCIe, over 20 ms; one GPU at a time.",
    ),
    gauge(
        "gpu/*/pcie_received_bytes_per_second",
        "Bytes per second that the GPU received over PCIe, over 20 ms; one GPU at a time.",
    ),
    counter("gpu/*/nvlink_crc_errors_total", "Checksum errors on all NVLinks of the GPU.", "errors"),
    counter("gpu/*/nvlink_replay_errors_total", "Packets sent again on all NVLinks of the GPU.", "errors"),
    counter("gpu/*/nvlink_recovery_errors_total", "Times that an NVLink of the GPU had to be restarted.", "errors"),
    gauge("gpu/*/mig/*/memory_used_bytes", "Memory in use on the MIG instance."),
    gauge("gpu/*/mig/*/memory_total_bytes", "Total memory of the MIG instance."),
    gauge("gpu/*/mig/*/own_memory_bytes", "Memory of the MIG instance held by the run's processes."),
    gauge("gpu/*/mig/*/other_memory_bytes", "Memory of the MIG instance held by other processes."),
    gauge("gpu/count", "GPUs of the run on this node that respond."),
    gauge("gpu/mean_utilization_ratio", "Mean utilization of the run's GPUs on this node."),
    gauge("gpu/min_utilization_ratio", "Utilization of the least used of the run's GPUs on this node."),
    gauge("gpu/sum_memory_used_bytes", "Memory in use on all of the run's GPUs on this node."),
    gauge("gpu/max_memory_used_bytes", "Memory in use on the fullest of the run's GPUs on this node."),
    gauge("gpu/sum_power_watts", "Total power draw of the run's GPUs on this node."),
    gauge("gpu/max_temperature_celsius", "Temperature of the hottest of the run's GPUs on this node."),
)

AGGREGATES: tuple[tuple[str, str, Callable[[Sequence[float]], float]], ...] = (
    ("gpu/mean_utilization_ratio", "utilization_ratio", lambda column: sum(column) / len(column)),
    ("gpu/min_utilization_ratio", "utilization_ratio", min),
    ("gpu/sum_memory_used_bytes", "memory_used_bytes", sum),
    ("gpu/max_memory_used_bytes", "memory_used_bytes", max),
    ("gpu/sum_power_watts", "power_watts", sum),
    ("gpu/max_temperature_celsius", "temperature_celsius", max),
)
"""Metrics over all GPUs of a node: the value of each GPU that they summarize, and how."""


def aggregated(column: Callable[[str], Sequence[float]]) -> dict[str, float]:
    """Return the metrics over all GPUs of a node; `column` returns the values of the GPUs that have one."""
    columns = {source: column(source) for _, source, _ in AGGREGATES}
    return {name: summarize(columns[source]) for name, source, summarize in AGGREGATES if columns[source]}


HARMFUL = {
    "hw_slowdown": "the hardware halved the clock or more",
    "sw_thermal": "too hot: the driver lowered the clock",
    "hw_thermal": "too hot: the hardware lowered the clock",
    "power_brake": "the power supply asked for less",
}
"""Unwanted throttling; a power cap is normal for a busy GPU."""
THROTTLE_REMEDY = "check cooling, air flow and power supply; nvidia-smi -q -d PERFORMANCE,TEMPERATURE shows more"
LOST_REMEDY = "the kernel log (dmesg | grep -i xid) says why; the machine needs a reset of the GPU or a restart"
ECC_REMEDY = "results since then may be wrong: go back to a checkpoint; reset the GPU, and replace it if this recurs"
HUNG_REMEDY = "other metrics go on, GPU metrics are tried again; see whether nvidia-smi answers, and dmesg for Xids"


class Xid(NamedTuple):
    """The meaning of a driver error number."""

    meaning: str
    remedy: str


_PROGRAM = "mostly a fault of the program: run it with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer"
_RESET = "stop what runs on the GPU and reset it (nvidia-smi -r)"
XIDS: dict[int, Xid] = {
    13: Xid("a kernel failed: invalid access or instruction", _PROGRAM),
    31: Xid("a kernel used an invalid memory address", _PROGRAM),
    43: Xid("the GPU stopped a program that had failed", _PROGRAM),
    45: Xid("work was removed after an earlier error, or its process was killed", "look at the error before it"),
    48: Xid("memory error that could not be corrected (double bit)", f"{_RESET}; replace the card if this recurs"),
    63: Xid("a faulty row of memory will be replaced", f"when convenient, {_RESET}"),
    64: Xid("a faulty row of memory could not be replaced", f"{_RESET}; replace the card if this recurs"),
    74: Xid("NVLink error", f"{_RESET}; check bridges and cables, see nvidia-smi nvlink -e"),
    79: Xid("the GPU has fallen off the bus", "restart the machine; check power, cooling and the PCIe slot"),
    94: Xid("memory error that hit one program only", f"start the run again from a checkpoint; later {_RESET}"),
    95: Xid("memory error that may have hit every program on the GPU", f"{_RESET}, then start again from a checkpoint"),
    119: Xid("the GPU's own processor (GSP) does not answer", f"{_RESET} or restart the machine; update the driver"),
}
UNKNOWN_XID = Xid("error of the driver", "look the number up in NVIDIA's list of Xid errors")

NO_GPU = (
    "no NVIDIA GPU or driver found (there is no /dev/nvidiactl); if there should be one, check nvidia-smi, then "
    "torch.cuda.is_available(), and start a container with --gpus all"
)
NOT_MINE = "CUDA_VISIBLE_DEVICES shows the run no GPU of this machine; unset it, or ask for all devices"
NO_CARDS = "the NVIDIA driver runs and shows no GPU; check nvidia-smi -L, and NVIDIA_VISIBLE_DEVICES in a container"
ORDER_DOUBT = (
    "CUDA counts different cards by speed, the driver by slot, so which are the run's is a guess; "
    "set CUDA_DEVICE_ORDER=PCI_BUS_ID"
)
NAMESPACE = "the driver names processes by numbers of another PID namespace; start the container with --pid=host"
HIDDEN = "the driver does not report the memory of each process; see nvidia-smi"
_CANNOT_START: dict[int | str, str] = {
    "binding": "nvidia-ml-py is not installed; pip install nvidia-ml-py",
    4: "no right to open the NVIDIA devices; see ls -l /dev/nvidia* and ask for their group (root is not needed)",
    9: "NVIDIA driver not loaded; check with nvidia-smi, load it with modprobe nvidia or restart the machine",
    12: "libnvidia-ml.so.1 of the NVIDIA driver not found; install the driver, start a container with --gpus all",
    18: "the NVIDIA library and the loaded driver are of different versions; restart the machine after an update",
}
_MISSING = {
    "unsupported": "this card or driver does not report it; nothing to do",
    "denied": "this user may not read it; ask the administrator for the right if you need it (root is not needed)",
    "failed": "the driver failed to report it; it is asked again each time",
}


def cannot_start(code: int | str, reason: str) -> str:
    """Return why there are no GPU metrics and what to do, from the helper's error."""
    return _CANNOT_START.get(code, f"the NVIDIA driver cannot be used: {reason}; check with nvidia-smi")


def why_missing(kind: str, reason: str) -> str:
    """Return why one value is missing and what to do; `reason` is the driver's own word for it."""
    cause, _, remedy = _MISSING[kind].partition("; ")
    return f"{cause} ({reason}); {remedy}"
