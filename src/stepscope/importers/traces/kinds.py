"""The kind of a trace event: by its category in the spellings of all versions and vendors, else by its lane."""

from __future__ import annotations

import re

from stepscope.core import trace
from stepscope.core.trace import KERNEL, MEMCPY, MEMSET, OTHER, OVERHEAD, RANGE, Lane

CATEGORIES = {
    trace.OPERATOR: ("cpu_op", "operator", "cpu_operator", "cpu_instant_event", "hccl_op"),
    trace.ANNOTATION: ("user_annotation", "annotation", "collective_comm", "external_correlation", "dataloader"),
    trace.PYTHON: ("python_function", "python"),
    trace.RUNTIME: (
        *("runtime", "driver", "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "roc_runtime"),
        *("xpu_runtime", "xpu_driver", "mtia_runtime", "privateuse1_runtime", "privateuse1_driver", "glow_runtime"),
        *("cann_runtime", "npu_runtime", "acl_runtime", "musa_runtime", "musa_driver"),
    ),
    OVERHEAD: ("overhead",),
    trace.SYNC: ("sync", "cuda_sync", "xpu_sync", "hip_sync", "cuda_event", "musa_sync"),
    RANGE: ("gpu_user_annotation", "cuda_profiler_range", "mtia_insight", "mtia_workloadd"),
    KERNEL: ("kernel", "gpu_op", "hpu_op", "mtia_ccp_events", "mtia_ccp", "concurrent_kernel", "npu_kernel"),
    MEMCPY: ("memcpy", "gpu_memcpy"),
    MEMSET: ("memset", "gpu_memset"),
    OTHER: ("trace", "async", "ac2g", "fwdbwd", "async_cpu_to_gpu", "async_gpu", "gpu_pm_counter", "mtia_counters"),
}
"""Categories by kind, in lower case: PyTorch 1.8 to today, CUDA, ROCm, XPU, MTIA, Gaudi, Ascend, Musa."""

MIXED = frozenset({"mtia_ccp_events", "mtia_ccp", "hpu_op", "gpu_op"})
"""Categories for everything a device does, copies among its kernels: here the name decides."""

KIND_OF = {category: kind for kind, categories in CATEGORIES.items() for category in categories}

HOST_PROCESS = re.compile(r"overlap analysis|^cann$|^python|/host:|\bcpu\b|^host", re.IGNORECASE)
"""Processes whose events run on the host, or only summarize others."""
DEVICE_PROCESS = re.compile(
    r"/device:|\bgpu\b|\bnpu\b|\btpu\b|\bxpu\b|\bhpu\b|ascend hardware|\bdevice \d", re.IGNORECASE
)
DEVICE_THREAD = re.compile(r"\bstream\b|^xla ops|^group .* communication|^group_name_.* communication", re.IGNORECASE)
DEVICE_ONLY_THREAD = re.compile(r"^group .* communication|^group_name_.* communication|^stream #?\d+", re.IGNORECASE)
COPY_NAME = re.compile(r"mem_?cpy|^dma|copy (h2d|d2h|d2d)|\b(htod|dtoh|dtod|h2d|d2h|d2d)\b", re.IGNORECASE)
FILL_NAME = re.compile(r"mem_?set", re.IGNORECASE)
SPAN_NAME = re.compile(r"^(ProfilerStep|Iteration|Record Window End)")


def kind_of(category: str, lane: Lane, name: str) -> int:
    """Return the kind of an event by its category as the trace spells it, else by its lane and name."""
    known = certain(category)
    if known is not None:
        return known
    if category.strip().lower() not in MIXED:
        if not on_device(lane):
            return OTHER
        if SPAN_NAME.search(name):
            return RANGE
    if FILL_NAME.search(name):
        return MEMSET
    return MEMCPY if COPY_NAME.search(name) else KERNEL


def certain(category: str) -> int | None:
    """Return the kind that a category alone determines; None if lane or name matter."""
    word = category.strip().lower()
    return None if word in MIXED else KIND_OF.get(word)


def on_device(lane: Lane) -> bool:
    """Return whether a lane is a device's stream, by the names of its process and thread."""
    if HOST_PROCESS.search(lane.process) and not DEVICE_PROCESS.search(lane.process):
        return False
    if DEVICE_PROCESS.search(lane.process):
        return bool(DEVICE_THREAD.search(lane.thread)) or not lane.thread
    return bool(DEVICE_ONLY_THREAD.search(lane.thread))


def is_host(category: str) -> bool:
    """Return whether a category is known to belong to a thread of the host."""
    return KIND_OF.get(category.strip().lower(), KERNEL) <= OVERHEAD
