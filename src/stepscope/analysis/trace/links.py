"""What launched what: nested host events, and device events with the call and the operator that launched them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.trace.spans import NONE, parents
from stepscope.core.trace import ANNOTATION, OPERATOR, RUNTIME

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.core.arrays import AnyIntegers, Mask
    from stepscope.core.trace import Trace


@dataclass(frozen=True)
class Links:
    """Host and device events of a trace, joined. Places count within `host`; `NONE` if there is nothing to join."""

    host: AnyIntegers
    """Rows of operators, annotations and runtime calls, in the order of the trace."""
    parent: AnyIntegers
    """For each of `host`: the place of the innermost one around it, on the same thread."""
    device: AnyIntegers
    """Rows of kernels, copies and fills, in the order of the trace."""
    call: AnyIntegers
    """For each of `device`: the place of the runtime call that launched it."""
    operator: AnyIntegers
    """For each of `device`: the place of the innermost operator or annotation that launched it."""


def link(trace: Trace) -> Links:
    """Join host and device events by correlation or, if no call has it, by the external id of the operator."""
    host = np.flatnonzero((trace.kind == OPERATOR) | (trace.kind == ANNOTATION) | (trace.kind == RUNTIME))
    host = host.astype(np.int32)
    device = np.flatnonzero(trace.on_device).astype(np.int32)
    kind = trace.kind[host]
    parent = parents(trace.lane, trace.start, trace.end, host)
    call = _joined(trace.correlation, host, kind == RUNTIME, trace.correlation[device])
    operator = np.full(len(device), NONE, dtype=np.int32)
    known = call != NONE
    operator[known] = _above_calls(kind, parent)[call[known]]
    if (operator == NONE).any():
        direct = _joined(trace.external, host, kind == OPERATOR, trace.external[device])
        operator = np.where(operator != NONE, operator, direct)
    return Links(host, parent, device, call, operator)


def _above_calls(kind: NDArray[np.int8], parent: AnyIntegers) -> AnyIntegers:
    """Return for each host event the innermost one around it that is no runtime call."""
    above: AnyIntegers = parent.copy()
    while (inner := (above != NONE) & (kind[above] == RUNTIME)).any():
        above[inner] = parent[above[inner]]
    return above


def _joined(keys: AnyIntegers, host: AnyIntegers, chosen: Mask, wanted: AnyIntegers) -> NDArray[np.int32]:
    """Return for each wanted key the first place in `host` that has it. Keys of 0 and below join nothing."""
    place = np.flatnonzero(chosen).astype(np.int32)
    key = keys[host[place]]
    place, key = place[key > 0], key[key > 0]
    order = np.argsort(key, kind="stable")
    place, key = place[order], key[order]
    if not len(key):
        return np.full(len(wanted), NONE, dtype=np.int32)
    at = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    return np.where((key[at] == wanted) & (wanted > 0), place[at], np.int32(NONE))
