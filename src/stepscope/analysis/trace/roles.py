"""What a device event is for: computing, moving memory, or communicating with other devices.

Communication is recognised for every vendor: by the kernel's name, by what the trace itself says about it, by the
collective call of the host that launched it, and by the stream that it shares with others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.trace.links import Links, link
from stepscope.analysis.trace.window import named_like
from stepscope.core.trace import KERNEL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.core.arrays import Mask
    from stepscope.core.trace import Trace

    Roles = NDArray[np.int8]

NOTHING, COMPUTE, COPY, COMMUNICATION = 0, 1, 2, 3
"""Roles: no work of the device; kernels; copies and fills; collectives and sends between devices."""

LIBRARIES = (
    r"nccl|rccl|msccl|oneccl|\bccl::|ccl_(?:kernel|all|reduce|send)|hccl|hcom_|xccl|mccl|ecclKernel|eccl_",
    r"nvshmem|rocshmem|ishmem|symm(?:etric)?_?mem|multimem|userbuffers|mscclpp|torch_?comms|tokenspeed_comm",
    r"deep_?ep::|deep_ep|\b(?:intra|inter)node(?:_ll)?::|low_latency_(?:dispatch|combine)|notify_(?:dispatch|combine)",
    r"(?:^|[^a-z])(?:mori|pplx|uccl|ep_?kernels?)::.*(?:dispatch|combine|send|recv|a2a)",
)
"""Libraries that only communicate."""
PATTERNS = (
    r"all_?reduce(?!d)|all_?gather(?!_?v?_?index)|reduce_?scatter|all_?to_?all|a2a_(?:kernel|send|recv|dispatch|combine)",
    r"cross_device_reduce|(?:one|two)_?shot|quick_?reduce|lamport|custom_ar\b|send_?recv|(?:^|[^a-z])barrier_kernel",
    r"put_signal|wait_signal|p2p_(?:send|recv)|ring_exchange|(?:kv|expert)_(?:dispatch|combine)_(?:send|recv)",
)
"""What collectives are called in any library."""
COMMUNICATING = re.compile("|".join(LIBRARIES + PATTERNS), re.IGNORECASE)

COLLECTIVE_CALL = re.compile(
    r"^(?:nccl|rccl|gloo|mpi|ucc|xccl|ccl|hccl|mccl|eccl):|^record_param_comms|^c10d::|^_?c10d_functional"
    r"|^(?:symm_mem|deep_ep|nvshmem)::|::_?(?:all_reduce|all_gather|reduce_scatter|all_to_all|allreduce|allgather)"
    r"|(?:^|::)(?:moe_)?(?:dispatch|combine)_(?:send|recv)|^(?:hcom|Hccl)|custom_ar(?:::|_)",
    re.IGNORECASE,
)
"""Host ranges inside which a kernel is launched in order to communicate."""
COMPUTING = re.compile(
    r"at::native|elementwise|vectorized|gemm|cutlass|cublas|cudnn|miopen|triton_|reduce_kernel|softmax|norm|attention"
    r"|flash|fmha|conv|embedding|index|scatter|gather|cat_|copy_kernel|fill|permute|sort|topk|quant|rotary|silu|gelu|adam",
    re.IGNORECASE,
)
"""Names of kernels that compute, even on a stream that mostly communicates or under a collective's call."""
COMMUNICATION_LANE = re.compile(r"nccl|rccl|hccl|communication|collective", re.IGNORECASE)
STREAM_SHARE = 0.8
"""Share of a stream's kernel time that must be communication for its unnamed kernels to count as such."""


def roles(trace: Trace, links: Links | None = None) -> Roles:
    """Return the role of every event."""
    found = np.zeros(len(trace), np.int8)
    found[trace.on_device] = COPY
    kernel = trace.kind == KERNEL
    found[kernel] = COMPUTE
    if not kernel.any():
        return found
    talks = named_like(trace, COMMUNICATING, kernel)
    for key in ("Collective name", "Process Group Name"):
        if key in trace.texts:
            rows = trace.texts[key].rows
            talks[rows] |= kernel[rows]
    doubtful = kernel & ~talks
    doubtful &= ~named_like(trace, COMPUTING, doubtful)
    if doubtful.any():
        labelled = np.array([COMMUNICATION_LANE.search(lane.thread) is not None for lane in trace.lanes], bool)
        talks |= doubtful & (_called(trace, link(trace) if links is None else links) | labelled[trace.lane])
        talks |= doubtful & _alongside(trace, kernel, talks)
    found[talks] = COMMUNICATION
    return found


def _called(trace: Trace, links: Links) -> Mask:
    """Return which device events a collective call of the host launched directly."""
    called, is_caller = np.zeros(len(trace), bool), np.zeros(len(trace), bool)
    known = links.operator >= 0
    caller = links.host[links.operator[known]]
    is_caller[caller] = True
    called[links.device[known]] = named_like(trace, COLLECTIVE_CALL, is_caller)[caller]
    return called


def _alongside(trace: Trace, kernel: Mask, talks: Mask) -> Mask:
    """Return which events are on a stream that nearly only communicates."""
    length = (trace.end - trace.start).astype(np.float64)
    size = len(trace.lanes)
    every = np.bincount(trace.lane[kernel], length[kernel], size)
    talking = np.bincount(trace.lane[talks], length[talks], size)
    return np.asarray((every > 0) & (talking >= STREAM_SHARE * every), bool)[trace.lane]
