"""Kernels of a trace: what each does (its family), what it costs, and what its absence would bring at most.

The gain of removing something is the time in which it ran and nothing else did, as a share of the window. It is an
upper bound: work behind it may take its place, and where the host is the limit, the device gains nothing (see the
critical path).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.finding import INFO, Finding
from stepscope.analysis.trace.links import Links, link
from stepscope.analysis.trace.roles import COMMUNICATION, roles
from stepscope.analysis.trace.spans import BLOCK, NONE, alone, inherited
from stepscope.core.trace import MEMCPY, MEMSET

if TYPE_CHECKING:
    from stepscope.analysis.trace.window import TraceWindow
    from stepscope.core.arrays import AnyIntegers, Mask
    from stepscope.core.trace import Trace


OTHER = "other"
FAMILIES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (family, re.compile(pattern, re.IGNORECASE))
    for family, pattern in (
        ("elementwise", r"^triton_poi"),
        ("normalisation", r"^triton_(red|per).*norm"),
        ("softmax", r"^triton_(red|per).*softmax"),
        ("reduction", r"^triton_(red|per)"),
        ("embedding", r"embedding|embs|lookup"),
        ("optimizer", r"multi_tensor_apply|adam|lamb(?!da)|sgd|adagrad|rmsprop|distributedoptim"),
        ("attention", r"flash|fmha|attention|attn|sdpa|\bmha|paged|mla_"),
        ("normalisation", r"norm|bn_fw|bn_bw|rms_|welford|gammabeta|rowwisemoments|internalgradients"),
        ("convolution", r"conv(?!ert)|cudnn|winograd|fprop|dgrad|wgrad|nchwtonhwc|nhwctonchw|im2col|col2im|miopen"),
        ("gemm", r"(?<!fb)gemm|gemv|cutlass|cublas|wgmma|xmma|splitk|cijk_|matmul|nvjet|dot_kernel|^triton_(tem|b?mm)"),
        ("softmax", r"softmax|cross_entropy|nll"),
        ("sort", r"sort|topk|radix|scan|cub::|unique"),
        ("indexing", r"index|indices|gather|scatter|segment|permute"),
        ("random", r"dropout|random|distribution_|philox|curand"),
        ("pooling", r"pool|upsample|interpolat"),
        ("reduction", r"reduce|argmax|argmin"),
        ("elementwise", r"elementwise|pointwise|vectorized|unrolled|copy|fill|cast|transpose|add|mul|relu|gelu|silu"),
    )
)
"""Families of kernels by name, first match wins: from the names that cuBLAS, cuDNN, CUTLASS, ATen, Triton,
FlashAttention, rocBLAS, MIOpen and FBGEMM give their kernels."""
GENERIC = re.compile(r"cutlass|device_kernel", re.IGNORECASE)
"""Kernels that say only in their template arguments what they do."""
COPY, FILL, EXCHANGE = "memcpy", "memset", "communication"
NAMES = (*dict.fromkeys(family for family, _ in FAMILIES), OTHER, COPY, FILL, EXCHANGE)
"""Every family."""

REMEDIES = {
    "gemm": "use bf16, fp16 or fp8 and sizes that are multiples of 64; see whether the products can be batched",
    "attention": "use a fused attention (scaled_dot_product_attention, FlashAttention)",
    "normalisation": "fuse it: torch.compile, or a fused layer or RMS norm; channels_last for batch norm",
    "convolution": "use channels_last, bf16 or fp16, and torch.backends.cudnn.benchmark",
    "elementwise": "fuse it with torch.compile, or write fewer, larger operations",
    "reduction": "fuse it with torch.compile",
    "optimizer": "use fused=True (or foreach=True) in the optimizer",
    COPY: "copy from pinned memory with non_blocking=True, or keep the data on the device",
    EXCHANGE: "overlap it with computation, use larger buckets, or exchange less",
}
"""What to do about a family that takes much; families without a common remedy are left out."""
WORTH_RATIO = 0.1
"""Gain of a family, as a share of the window, from which it is worth a finding."""


def families(trace: Trace, links: Links | None = None) -> list[str]:
    """Return the family of each device event of a trace, in the order of its rows.

    Communication is what `trace_roles` says. What was launched inside the optimizer's step belongs to the optimizer,
    whatever the kernel is called.
    """
    links = link(trace) if links is None else links
    return [NAMES[code] for code in family_codes(trace, links).tolist()]


def family_codes(trace: Trace, links: Links) -> AnyIntegers:
    """Return the same as places in `NAMES`."""
    table = np.zeros(max(len(trace.names), 1), dtype=np.int8)
    for name in np.unique(trace.name[links.device]).tolist():
        table[name] = _family(trace.names[name])
    found: AnyIntegers = table[trace.name[links.device]]
    found[_in_optimizer(trace, links)] = NAMES.index("optimizer")
    found[roles(trace, links)[links.device] == COMMUNICATION] = NAMES.index(EXCHANGE)
    found[trace.kind[links.device] == MEMCPY] = NAMES.index(COPY)
    found[trace.kind[links.device] == MEMSET] = NAMES.index(FILL)
    return found


@lru_cache(maxsize=4096)
def _family(name: str) -> int:
    """Return the family by the name without template arguments, which tell other things too; else by all of it."""
    head = re.split(r"[<(]", name.replace("(anonymous namespace)::", "").removeprefix("void "), maxsplit=1)[0]
    told = (name,) if GENERIC.search(head) else (head, name)
    return NAMES.index(next((family for text in told for family, pattern in FAMILIES if pattern.search(text)), OTHER))


def _in_optimizer(trace: Trace, links: Links) -> Mask:
    """Return which device events were launched inside an annotation such as `Optimizer.step#AdamW.step`."""
    codes = [code for code, name in enumerate(trace.names) if name.startswith("Optimizer.step")]
    if not codes or not len(links.host):
        return np.zeros(len(links.device), dtype=np.bool_)
    inside = inherited(np.isin(trace.name[links.host], codes), links.parent)
    return np.asarray((links.operator != NONE) & inside[links.operator])


def kernel_table(trace: Trace, window: TraceWindow, links: Links | None = None) -> list[dict[str, Any]]:
    """Return one row per kernel (copies and fills too), most time first; its family is the one of most of its time.

    `percent` is the share of all device time, `gain_percent` of the window: what its absence would save at most.
    """
    links = link(trace) if links is None else links
    name, family = trace.name[links.device], family_codes(trace, links)
    both = name * np.int64(len(NAMES)) + family
    # What has no length counts too: its family is not nothing.
    spent = np.bincount(both, weights=trace.end[links.device] - trace.start[links.device] + 1)
    spent.resize((len(trace.names), len(NAMES)), refcheck=False)
    most = spent.argmax(axis=1).tolist()
    rows = _costs(trace, window, links, name)
    return [{"name": trace.names[row["code"]], "family": NAMES[most[row.pop("code")]]} | row for row in rows]


def family_table(trace: Trace, window: TraceWindow, links: Links | None = None) -> list[dict[str, Any]]:
    """Return one row per family of kernels, most time first; columns as in `kernel_table`."""
    links = link(trace) if links is None else links
    code = family_codes(trace, links)
    return [{"family": NAMES[row.pop("code")]} | row for row in _costs(trace, window, links, code)]


def _costs(trace: Trace, window: TraceWindow, links: Links, code: AnyIntegers) -> list[dict[str, Any]]:
    """Return what each group of device events costs inside the window, most time first."""
    start, end = (np.clip(column[links.device], window.start, window.end) for column in (trace.start, trace.end))
    groups = int(code.max(initial=-1)) + 1
    calls, total, longest = np.zeros((3, groups + 1), dtype=np.int64)
    for first in range(0, len(code), BLOCK):
        rows = slice(first, first + BLOCK)
        time, device = end[rows] - start[rows], links.device[rows]
        # One without length counts if it lies inside; what lies outside counts in the group after the last.
        inside = (time > 0) | ((trace.start[device] >= window.start) & (trace.end[device] <= window.end))
        group = np.where(inside, code[rows], groups)
        calls += np.bincount(group, minlength=groups + 1)
        total += np.bincount(group, weights=time, minlength=groups + 1).astype(np.int64)
        np.maximum.at(longest, group, time)
    gain = alone(start, end, code, groups)
    whole = max(int(total.sum()), 1)
    rows_of = [
        {
            "code": place,
            "calls": count,
            "total_us": time / 1000,
            "mean_us": time / count / 1000,
            "max_us": most / 1000,
            "percent": 100 * time / whole,
            "gain_percent": 100 * saved / max(window.length, 1),
        }
        for place, (count, time, most, saved) in enumerate(
            zip(*(column[:groups].tolist() for column in (calls, total, longest, gain)), strict=True)
        )
        if count
    ]
    return sorted(rows_of, key=lambda row: -row["total_us"])


def findings(table: list[dict[str, Any]]) -> list[Finding]:
    """Name the families of kernels, by their table, whose absence would shorten the window most."""
    return [
        Finding(
            "kernel_family",
            f"{row['family']} kernels run alone for {row['gain_percent']:.0f} % of the window "
            f"({row['calls']} calls, {row['total_us'] / 1000:.1f} ms)",
            INFO,
            REMEDIES[row["family"]],
            {key: row[key] for key in ("family", "calls", "total_us", "gain_percent")},
            row["gain_percent"] / 100,
        )
        for row in table
        if row["gain_percent"] >= 100 * WORTH_RATIO and row["family"] in REMEDIES
    ]
