"""Who wrote an event, and the types of its fields: the program that wrote the run may have put anything in.

An event of the store has a `time` (seconds), a `kind` that is text, and `rank`, `attempt`, `step` and `sequence`
that are integers if present. Code that draws conclusions from events takes them from `ours`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WRITTEN_BY, USER = "written_by", "user"
"""The field that marks events of the user's own program, and its value there; a user's field is never called so."""
SHARED = frozenset(("checkpoint", "evaluation"))
"""Kinds that mean the same whether Stepscope or the user's program writes them."""
WATCHERS = frozenset(
    (
        *("stalled", "hung", "recovered", "ended", "stacks", "clock_jump", "alerting", "notification", "alert_request"),
        *("flight_recorder", "nccl_ras", "hang_verdict"),
        *("alert_action", "alert_action_ended", "sampler_failed", "sampler_back", "sampler_slowed", "cgroup_oom_kill"),
        *("gpu_lost", "gpu_back", "gpu_throttled", "ecc_uncorrected", "xid"),
        *("gpu_driver_back", "gpu_driver_hung", "gpu_reader_ended"),
    )
)
"""Kinds that only the watcher writes. Its events have no sequence; one with a sequence is the user's, marked or not."""
HANG_VERDICT = "hang_verdict"
"""Kind of the event with the one verdict on all ranks that stand still."""
TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("rank", "attempt", "step", "sequence", "nodes", "threads"), (int,)),
    **dict.fromkeys(("time", "seconds", "until", "value", "compared", "ratio", "zero", "weights", "layers"), (float,)),
    **dict.fromkeys(("wanted_bytes", "limit_bytes", "waited_seconds", "flops"), (float,)),
    **dict.fromkeys(("kind", "name", "text", "message", "error", "traceback", "cause", "reason", "remedy"), (str,)),
    **dict.fromkeys(("why", "what", "phase", "module", "place", "device", "dtype", "optimizer"), (str,)),
    **dict.fromkeys(("alert", "rule", "state", "severity", "key", "source"), (str,)),
    **dict.fromkeys(("recompiled", "complete", "persistent", "evaluates", "certain"), (bool,)),
    **dict.fromkeys(("labels", "evidence"), (dict,)),
    **dict.fromkeys(("edges", "counts", "stacks"), (list,)),
    **dict.fromkeys(("workers", "tensors"), (int, list)),
}
"""The types of fields that are read, by name; float is any number."""


def is_users(event: Mapping[str, Any]) -> bool:
    """Return whether the user's program wrote an event itself, under any kind."""
    return event.get(WRITTEN_BY) == USER or ("sequence" in event and event.get("kind") in WATCHERS)


def ours(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the events whose kind has our meaning: those of Stepscope, and of a shared kind.

    Fields that are not of the type in `TYPES` are left out, as if they were absent.
    """
    return [typed(event) for event in events if not is_users(event) or event.get("kind") in SHARED]


def typed(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event without the fields that are not of their type."""
    return {key: value for key, value in event.items() if key not in TYPES or fits(value, TYPES[key])}


def fits(value: Any, kinds: tuple[type, ...]) -> bool:
    """Return whether a value is of one of these types; a number must be finite and fit 64 bits, and is no bool."""
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, int):
        return (int in kinds or float in kinds) and -(2**63) < value < 2**63
    return isinstance(value, kinds) and (not isinstance(value, float) or math.isfinite(value))
