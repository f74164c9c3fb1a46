"""Kernels of a trace: what each does (its family), what it costs, and what removing it would save at most.

The gain of removing something is the time in which it ran and nothing else did, as a share of the window. It is an
upper bound: other work may take its place, and if the host is the limit, the device gains nothing (see the critical
path).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.finding import INFO, Finding
from stepscope.analysis.trace.roles import COMMUNICATION, roles
from stepscope.analysis.trace.spans import BLOCK, NONE, alone, inherited
from stepscope.analysis.trace.window import named_like
from stepscope.core.trace import MEMCPY, MEMSET

if TYPE_CHECKING:
    from stepscope.analysis.trace.links import Links
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
OPTIMIZER = re.compile(r"^Optimizer\.step")
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
MOST, SCAN = 80, 4000
"""Maximum characters of a name in a sentence, and characters of a name that are read: some have nine lines."""
CXX_OPERATORS = re.compile(r"operator(?:<<|>>|<=|>=|<|>|\(\))")


def short_name(name: str, most: int = MOST) -> str:
    """Return a name for people: "at::native::vectorized_elementwise_kernel<…>"; a short one stays as it is."""
    if len(name) <= most and not name.startswith("void "):
        return name
    text = CXX_OPERATORS.sub("operator", name[:SCAN].removeprefix("void ").replace("(anonymous namespace)::", ""))
    kept, depth = [], 0
    for letter in text:
        if letter in "<(":
            kept += ["<…>"] if letter == "<" and depth == 0 else []
            depth += 1
        elif letter in ">)":
            depth = max(0, depth - 1)
        elif depth == 0:
            kept.append(letter)
    found = "".join(kept).strip() or name
    return found if len(found) <= most else f"{found[: most - 1]}…"


def families(trace: Trace, links: Links) -> list[str]:
    """Return the family of each device event of a trace, in the order of its rows."""
    return [NAMES[code] for code in family_codes(trace, links).tolist()]


def family_codes(trace: Trace, links: Links) -> AnyIntegers:
    """Return the family of each device event as its place in `NAMES`.

    Roles decide what is communication. Work launched inside the optimizer's step belongs to the optimizer, whatever
    the kernel is called.
    """
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
    """Return the family by the name without template arguments, which may mislead; else by all of it."""
    head = re.split(r"[<(]", name.replace("(anonymous namespace)::", "").removeprefix("void "), maxsplit=1)[0]
    texts = (name,) if GENERIC.search(head) else (head, name)
    return NAMES.index(next((family for text in texts for family, pattern in FAMILIES if pattern.search(text)), OTHER))


def _in_optimizer(trace: Trace, links: Links) -> Mask:
    """Return which device events were launched inside an annotation such as `Optimizer.step#AdamW.step`."""
    marked = named_like(trace, OPTIMIZER)[links.host]
    if not marked.any():
        return np.zeros(len(links.device), dtype=np.bool_)
    inside = inherited(marked, links.parent)
    return np.asarray((links.operator != NONE) & inside[links.operator])


def kernel_table(trace: Trace, window: TraceWindow, links: Links) -> list[dict[str, Any]]:
    """Return one row per kernel, copy or fill, most time first, with the family that most of its time belongs to.

    `percent` is the share of all device time, `gain_percent` of the window: what its absence would save at most.
    """
    name, family = trace.name[links.device], family_codes(trace, links)
    both = name * np.int64(len(NAMES)) + family
    # Events without a length count too, so that their kernel has a family.
    spent = np.bincount(both, weights=trace.end[links.device] - trace.start[links.device] + 1)
    spent.resize((len(trace.names), len(NAMES)), refcheck=False)
    most = spent.argmax(axis=1).tolist()
    rows = _costs(trace, window, links, name)
    return [{"name": trace.names[row["code"]], "family": NAMES[most[row.pop("code")]]} | row for row in rows]


def family_table(trace: Trace, window: TraceWindow, links: Links) -> list[dict[str, Any]]:
    """Return one row per family of kernels, most time first; columns as in `kernel_table`."""
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
        # Events without a length count if they lie inside; events outside count in the group after the last.
        inside = (time > 0) | ((trace.start[device] >= window.start) & (trace.end[device] <= window.end))
        group = np.where(inside, code[rows], groups)
        calls += np.bincount(group, minlength=groups + 1)
        total += np.bincount(group, weights=time, minlength=groups + 1).astype(np.int64)
        np.maximum.at(longest, group, time)
    gain = alone(start, end, code, groups)
    whole = max(int(total.sum()), 1)
    return [
        {
            "code": place,
            "calls": int(calls[place]),
            "total_us": int(total[place]) / 1000,
            "mean_us": int(total[place]) / int(calls[place]) / 1000,
            "max_us": int(longest[place]) / 1000,
            "percent": 100 * int(total[place]) / whole,
            "gain_percent": 100 * int(gain[place]) / max(window.length, 1),
        }
        for place in np.argsort(-total[:groups], kind="stable").tolist()
        if calls[place]
    ]


def findings(table: list[dict[str, Any]]) -> list[Finding]:
    """Report the families of kernels, given their table, whose absence would shorten the window most."""
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
