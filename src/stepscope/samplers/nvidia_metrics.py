"""The metrics of the NVIDIA sampler, and plain explanations of the driver's errors and missing values."""

from __future__ import annotations

from typing import NamedTuple

from stepscope.core.vocabulary import COUNTER, GAUGE, Metric

METRICS: tuple[Metric, ...] = (
    Metric("gpu/*/utilization_ratio", "ratio", GAUGE, "Share of time in which the GPU ran a kernel."),
    Metric("gpu/*/memory_busy_ratio", "ratio", GAUGE, "Share of time in which the GPU memory was read or written."),
    Metric("gpu/*/memory_used_bytes", "bytes", GAUGE, "GPU memory in use."),
    Metric("gpu/*/memory_total_bytes", "bytes", GAUGE, "Total GPU memory."),
    Metric("gpu/*/own_memory_bytes", "bytes", GAUGE, "GPU memory held by the run's processes."),
    Metric("gpu/*/other_memory_bytes", "bytes", GAUGE, "GPU memory held by other processes."),
    Metric("gpu/*/temperature_celsius", "celsius", GAUGE, "GPU temperature."),
    Metric("gpu/*/memory_temperature_celsius", "celsius", GAUGE, "GPU memory temperature."),
    Metric("gpu/*/power_watts", "watts", GAUGE, "GPU power draw."),
    Metric("gpu/*/power_limit_watts", "watts", GAUGE, "GPU power limit."),
    Metric("gpu/*/energy_joules_total", "joules", COUNTER, "Energy used by the GPU since the driver was loaded."),
    Metric("gpu/*/fan_ratio", "ratio", GAUGE, "Fan speed as a share of its maximum."),
    Metric("gpu/*/sm_clock_hertz", "hertz", GAUGE, "Clock of the GPU's multiprocessors (SM)."),
    Metric("gpu/*/memory_clock_hertz", "hertz", GAUGE, "GPU memory clock."),
    Metric("gpu/*/throttle_power_cap", "", GAUGE, "1 while the clock is reduced to stay within the power limit."),
    Metric(
        "gpu/*/throttle_hw_slowdown",
        "",
        GAUGE,
        "1 while the hardware reduces the clock by half or more, because of heat or power.",
    ),
    Metric("gpu/*/throttle_sync_boost", "", GAUGE, "1 while the clock follows slower GPUs of its sync group."),
    Metric("gpu/*/throttle_sw_thermal", "", GAUGE, "1 while the driver reduces the clock because of heat."),
    Metric("gpu/*/throttle_hw_thermal", "", GAUGE, "1 while the hardware reduces the clock because of heat."),
    Metric("gpu/*/throttle_power_brake", "", GAUGE, "1 while the machine's power supply reduces the clock."),
    Metric(
        "gpu/*/ecc_corrected_errors_total",
        "errors",
        COUNTER,
        "Corrected memory errors since the driver was loaded.",
    ),
    Metric(
        "gpu/*/ecc_uncorrected_errors_total",
        "errors",
        COUNTER,
        "Uncorrectable memory errors since the driver was loaded.",
    ),
    Metric("gpu/*/remapped_rows_corrected_total", "rows", COUNTER, "Memory rows remapped after corrected errors."),
    Metric(
        "gpu/*/remapped_rows_uncorrected_total",
        "rows",
        COUNTER,
        "Memory rows remapped after uncorrectable errors.",
    ),
    Metric("gpu/*/remapped_rows_pending", "", GAUGE, "1 while row remapping waits for a GPU reset."),
    Metric("gpu/*/remapped_rows_failed", "", GAUGE, "1 if remapping failed because the GPU has no spare rows left."),
    Metric("gpu/*/pcie_replays_total", "packets", COUNTER, "PCIe packets that were sent again."),
    Metric(
        "gpu/*/pcie_sent_bytes_per_second",
        "bytes/second",
        GAUGE,
        "Bytes per second that the GPU sent over PCIe, over 20 ms; one GPU at a time.",
    ),
    Metric(
        "gpu/*/pcie_received_bytes_per_second",
        "bytes/second",
        GAUGE,
        "Bytes per second that the GPU received over PCIe, over 20 ms; one GPU at a time.",
    ),
    Metric("gpu/*/nvlink_crc_errors_total", "errors", COUNTER, "Checksum errors on all NVLinks of the GPU."),
    Metric("gpu/*/nvlink_replay_errors_total", "errors", COUNTER, "Packets sent again on all NVLinks of the GPU."),
    Metric(
        "gpu/*/nvlink_recovery_errors_total",
        "errors",
        COUNTER,
        "Times that an NVLink of the GPU had to be restarted.",
    ),
    Metric("gpu/*/mig/*/memory_used_bytes", "bytes", GAUGE, "Memory in use on the MIG instance."),
    Metric("gpu/*/mig/*/memory_total_bytes", "bytes", GAUGE, "Total memory of the MIG instance."),
    Metric("gpu/*/mig/*/own_memory_bytes", "bytes", GAUGE, "Memory of the MIG instance held by the run's processes."),
    Metric("gpu/*/mig/*/other_memory_bytes", "bytes", GAUGE, "Memory of the MIG instance held by other processes."),
    Metric("gpu/count", "", GAUGE, "GPUs of the run on this node that respond."),
    Metric("gpu/mean_utilization_ratio", "ratio", GAUGE, "Mean utilization of the run's GPUs on this node."),
    Metric(
        "gpu/min_utilization_ratio", "ratio", GAUGE, "Utilization of the least used of the run's GPUs on this node."
    ),
    Metric("gpu/sum_memory_used_bytes", "bytes", GAUGE, "Memory in use on all of the run's GPUs on this node."),
    Metric("gpu/max_memory_used_bytes", "bytes", GAUGE, "Memory in use on the fullest of the run's GPUs on this node."),
    Metric("gpu/sum_power_watts", "watts", GAUGE, "Total power draw of the run's GPUs on this node."),
    Metric(
        "gpu/max_temperature_celsius", "celsius", GAUGE, "Temperature of the hottest of the run's GPUs on this node."
    ),
)

HARMFUL = {
    "hw_slowdown": "the hardware halved the clock or more",
    "sw_thermal": "too hot: the driver lowered the clock",
    "hw_thermal": "too hot: the hardware lowered the clock",
    "power_brake": "the power supply asked for less",
}
"""Unwanted throttling; a power cap is normal for a busy GPU."""
THROTTLE_REMEDY = "check cooling, air flow and power supply; nvidia-smi -q -d PERFORMANCE,TEMPERATURE shows more"
LOST_REMEDY = "the kernel log (dmesg | grep -i xid) says why; the machine needs a reset of the GPU or a restart"
ECC_REMEDY = (
    "results since then may be wrong: go back to a checkpoint; reset the GPU, and replace it if this comes again"
)
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
    45: Xid(
        "work was removed after an earlier error, or because its process was killed", "look at the error before it"
    ),
    48: Xid("memory error that could not be corrected (double bit)", f"{_RESET}; replace the card if this comes again"),
    63: Xid("a faulty row of memory will be replaced", f"when convenient, {_RESET}"),
    64: Xid("a faulty row of memory could not be replaced", f"{_RESET}; replace the card if this comes again"),
    74: Xid("NVLink error", f"{_RESET}; check bridges and cables, see nvidia-smi nvlink -e"),
    79: Xid("the GPU has fallen off the bus", "restart the machine; check power, cooling and the PCIe slot"),
    94: Xid("memory error that hit one program only", f"start the run again from a checkpoint; later {_RESET}"),
    95: Xid("memory error that may have hit every program on the GPU", f"{_RESET}, then start again from a checkpoint"),
    119: Xid(
        "the processor inside the GPU (GSP) does not answer", f"{_RESET} or restart the machine; update the driver"
    ),
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
HIDDEN = "the driver does not say how much memory each process has; see nvidia-smi"
_CANNOT_START: dict[int | str, str] = {
    "binding": "nvidia-ml-py is not installed; pip install nvidia-ml-py",
    4: "no right to open the NVIDIA devices; see ls -l /dev/nvidia* and ask for their group (root is not needed)",
    9: "NVIDIA driver not loaded; check with nvidia-smi, load it with modprobe nvidia or restart the machine",
    12: "libnvidia-ml.so.1 of the NVIDIA driver not found; install the driver, start a container with --gpus all",
    18: "the NVIDIA library and the loaded driver are of different versions; restart the machine after an update",
}
_MISSING = {
    "unsupported": "this card or driver does not tell it; nothing to do",
    "denied": "this user may not read it; ask the administrator for the right if you need it (root is not needed)",
    "failed": "the driver failed to tell it; it is asked again each time",
}


def cannot_start(code: int | str, reason: str) -> str:
    """Return why there are no GPU metrics and what to do, from the helper's error."""
    return _CANNOT_START.get(code, f"the NVIDIA driver cannot be used: {reason}; check with nvidia-smi")


def why_missing(kind: str, reason: str) -> str:
    """Return why one value is missing and what to do; `reason` is the driver's own word for it."""
    cause, _, remedy = _MISSING[kind].partition("; ")
    return f"{cause} ({reason}); {remedy}"
