"""The report of NCCL's RAS, as `ncclras -f json` prints it, as plain data with the ranks of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.analysis.hang.evidence import RasCommunicator, RasReport

if TYPE_CHECKING:
    from collections.abc import Mapping

RUNNING = "RUNNING"
MOST_COMMUNICATORS, MOST_RANKS, MOST_OPERATIONS = 10_000, 65_536, 64
_FLAGS = (("abort_flag", "ABORT"), ("destroy_flag", "DESTROY"), ("finalize_called", "FINALIZE"))


def read_report(facts: Any) -> RasReport | None:
    """Return a report; None if these are the facts of none. Ranks of the job come from the largest communicator."""
    if not isinstance(facts, dict):
        return None
    rows = [one for one in _rows(facts.get("communicators"))[:MOST_COMMUNICATORS] if isinstance(one, dict)]
    if not rows and _rows(facts.get("missing_ranks")):  # the text form names them only
        rows = [{"missing_ranks": facts["missing_ranks"]}]
    largest = max(rows, key=lambda one: len(_rows(one.get("ranks"))), default={})
    world = {_process(row): row.get("rank") for row in _rows(largest.get("ranks")) if isinstance(row, dict)}
    found = tuple(_communicator(one, world) for one in rows)
    version = facts.get("nccl_version")
    return RasReport(found, (), version if isinstance(version, str) else "") if found else None


def _communicator(one: Mapping[str, Any], world: Mapping[object, Any]) -> RasCommunicator:
    counts: dict[int, dict[str, int]] = {}
    status: dict[int, str] = {}
    for row in _rows(one.get("ranks"))[:MOST_RANKS]:
        rank = _rank(row, world)
        if rank is not None:
            counts[rank] = _counts(row.get("collective_counts"))
            status[rank] = _status(row.get("status"))
    gone = [row for row in _rows(one.get("missing_ranks"))[:MOST_RANKS] if isinstance(row, dict)]
    numbered = [(rank, row) for row in gone if (rank := _rank(row, world)) is not None]
    dead = tuple(rank for rank, row in numbered if row.get("considered_dead") is True or row.get("status") == "dead")
    size = one.get("size")
    return RasCommunicator(
        str(one.get("secondary_hash") or one.get("hash") or "")[:80],
        counts,
        status,
        tuple(rank for rank, _ in numbered if rank not in dead),
        dead,
        size if isinstance(size, int) else len(counts) + len(numbered),
    )


def _rank(row: Any, world: Mapping[object, Any]) -> int | None:
    """Return the rank in the job of a process, which a small communicator numbers otherwise."""
    if not isinstance(row, dict):
        return None
    found = world.get(_process(row), row.get("rank"))
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 2**31 else None


def _process(row: Mapping[str, Any]) -> object:
    return str(row.get("host"))[:200], str(row.get("pid"))[:20], str(row.get("cuda_dev"))[:20]


def _counts(value: Any) -> dict[str, int]:
    rows = list(value.items())[:MOST_OPERATIONS] if isinstance(value, dict) else []
    return {str(name)[:40]: count for name, count in rows if isinstance(count, int) and not isinstance(count, bool)}


def _status(value: Any) -> str:
    if isinstance(value, str):
        return value[:40]
    if not isinstance(value, dict):
        return ""
    flags = [word for key, word in _FLAGS if value.get(key)]
    if flags:
        return flags[0]
    return RUNNING if not value.get("init_state") else f"INIT {value['init_state']!r:.20}"


def _rows(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
