"""The events that hold torch's record of the collectives of one rank."""

from __future__ import annotations

from typing import Any

MOST_BYTES = 96 << 10
"""Bytes of a record in an event: a few hundred collectives, the newest; a job may have thousands of ranks."""
FLIGHT = "flight_recorder"


def record_events(data: bytes, now: int) -> list[dict[str, Any]]:
    """Return the event that holds a record, as torch wrote it, or says why not. `now` is monotonic, in ns."""
    from stepscope.analysis.hang.record import compact  # a training that never hangs needs none of these
    from stepscope.importers.flight_recorder import parse_live

    try:
        facts = parse_live(data)
        return [{"kind": FLIGHT, "monotonic_ns": now, "record": compact(facts, MOST_BYTES)}]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return [{"kind": FLIGHT, "monotonic_ns": now, "why": f"torch's record could not be read: {error}"[:300]}]
