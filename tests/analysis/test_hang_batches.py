"""Batches of sends and receives, and coalesced collectives: torch records their parts, which never end."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.analysis.hang.collectives import judge_records
from stepscope.analysis.hang.record import FlightRecord

PIPE = {"7": {"name": "7", "desc": "PIPE", "ranks": "[0, 1, 2]"}}
ENDS = "nccl:coalesced"


class Recorder:
    """The flight recorder of one rank, as torch fills it."""

    def __init__(self, rank: int, *, is_active: bool = False, has_status: bool = True) -> None:
        """Begin; `is_active`: the dump leaves out what is complete."""
        self.rank, self.is_active, self.has_status = rank, is_active, has_status
        self.rows: list[dict[str, Any]] = []
        self.counts = {True: 0, False: 0}
        self.completed = -1

    def batch(self, *parts: str, is_done: bool = True, is_p2p: bool = True) -> None:
        """Record a batch, such as "send 1" and "recv 1"."""
        self.counts[is_p2p] += 1
        for part in parts:
            what, _, peer = part.partition(" ")
            sign = {"send": "->", "recv": "<-"}.get(what, "")
            self._add(f"nccl:{what} {self.rank}{sign}{peer}" if sign else f"nccl:{what}", "scheduled", is_p2p, [[8]])
        self._add(ENDS, "completed" if is_done else "scheduled", is_p2p, [])
        self.completed = self.counts[is_p2p] if is_done else self.completed

    def _add(self, name: str, state: str, is_p2p: bool, sizes: list[list[int]]) -> None:
        done = state == "completed"
        numbers = {"collective_seq_id": self.counts[False], "p2p_seq_id": self.counts[True], "is_p2p": is_p2p}
        place = {"record_id": len(self.rows), "pg_id": 3, "process_group": ["7", "PIPE"], "profiling_name": name}
        facts = {"state": state, "retired": done, "input_sizes": sizes, "input_dtypes": ["Float"] * len(sizes)}
        self.rows.append({**place, **numbers, **facts})

    def record(self) -> FlightRecord:
        """Return the dump."""
        shown = [row for row in self.rows if row["state"] != "completed" or not self.is_active]
        status = {"last_enqueued_collective": max(self.counts.values()), "last_started_collective": -1}
        status["last_completed_collective"] = self.completed
        groups = {"3": status} if self.has_status else {}
        return FlightRecord.of({"version": "2.9", "pg_config": PIPE, "pg_status": groups, "entries": shown})


@pytest.mark.parametrize("has_status", [True, False])
@pytest.mark.parametrize("is_active", [True, False])
def test_parts_of_complete_batches_do_not_wait(is_active: bool, has_status: bool) -> None:
    """Rank 2 stops; rank 1 waits for it in its newest batch, and in none of the older ones."""
    ranks = [Recorder(rank, is_active=is_active, has_status=has_status) for rank in range(3)]
    for _ in range(5):
        ranks[0].batch("send 1", "recv 1")
        ranks[1].batch("recv 0", "send 2", "recv 2", "send 0")
        ranks[2].batch("recv 1", "send 1")
    ranks[0].batch("send 1", "recv 1", is_done=False)
    ranks[1].batch("recv 0", "send 2", "recv 2", "send 0", is_done=False)
    found = judge_records({one.rank: one.record() for one in ranks})
    assert (found.kind, found.ranks, found.waiting) == ("never_arrived", (2,), (0, 1))
    assert "rank 2 never came to the other end: rank 1 waits in" in found.text


@pytest.mark.parametrize("is_active", [True, False])
def test_batches_of_one_are_over_once_their_end_is(is_active: bool) -> None:
    """A dump of active operations shows only the part of a complete batch of one: the counters tell that it is over."""
    sender, receiver = Recorder(0, is_active=is_active), Recorder(1, is_active=is_active)
    for _ in range(3):
        sender.batch("send 1")
        receiver.batch("recv 0")
    receiver.batch("recv 0", is_done=False)
    found = judge_records({0: sender.record(), 1: receiver.record()})
    assert (found.ranks, found.waiting) == ((0,), (1,))


@pytest.mark.parametrize("is_active", [True, False])
def test_the_newest_batch_of_one_is_over_once_its_end_is(is_active: bool) -> None:
    """A rank that batches batches all: its newest send is complete although an active dump does not show its end."""
    sender, receiver = (Recorder(rank, is_active=is_active, has_status=False) for rank in range(2))
    sender.batch("send 1", "recv 1")
    sender.batch("send 1")
    receiver.batch("recv 0", "send 0")
    receiver.batch("recv 0")
    receiver.batch("recv 0", is_done=False)
    found = judge_records({0: sender.record(), 1: receiver.record()})
    assert (found.kind, found.ranks) == ("never_arrived", (0,))


@pytest.mark.parametrize("is_active", [True, False])
def test_a_batch_in_which_all_are_present_is_stuck(is_active: bool) -> None:
    """Both ends are there, and neither has left: nobody is accused."""
    ranks = [Recorder(rank, is_active=is_active) for rank in range(2)]
    ranks[0].batch("send 1", "recv 1", is_done=False)
    ranks[1].batch("recv 0", "send 0", is_done=False)
    assert judge_records({one.rank: one.record() for one in ranks}).kind == "collective_stuck"


@pytest.mark.parametrize("is_active", [True, False])
def test_coalesced_collectives_are_one(is_active: bool) -> None:
    """The parts of complete ones do not wait, and ranks that coalesce other collectives are named."""
    ranks = [Recorder(rank, is_active=is_active) for rank in range(3)]
    for one in ranks:
        one.batch("_all_gather_base", "_all_gather_base", is_p2p=False)
        parts = ("_all_gather_base",) if one.rank == 1 else ("_all_gather_base", "_all_gather_base")
        one.batch(*parts, is_p2p=False, is_done=False)
    found = judge_records({one.rank: one.record() for one in ranks})
    assert (found.kind, found.ranks) == ("desynchronised", (1,))


def test_single_sends_and_receives_of_an_active_dump_still_wait() -> None:
    """Without batches each is an operation of its own: the record after it is there."""
    rows = [
        {"record_id": 10 + at, "process_group": ["7", "PIPE"], "p2p_seq_id": 4 + at, "state": "scheduled"}
        for at in (0, 1)
    ]
    sends = [{**row, "profiling_name": "nccl:send 0->1", "is_p2p": True} for row in rows]
    waits = FlightRecord.of({"pg_config": PIPE, "entries": sends})
    idle = FlightRecord.of({"pg_config": PIPE, "entries": []})
    found = judge_records({0: waits, 1: idle, 2: idle})
    assert (found.ranks, found.waiting) == ((1,), (0,))


def test_a_device_that_did_not_begin_what_others_began_is_the_cause() -> None:
    """With timing, torch records which devices have begun a collective that all have called."""

    def record(rank: int) -> FlightRecord:
        row = {
            "record_id": 1,
            "process_group": ["7", "PIPE"],
            "collective_seq_id": 4,
            "profiling_name": "nccl:all_reduce",
        }
        return FlightRecord.of(
            {"pg_config": PIPE, "entries": [{**row, "state": "scheduled" if rank == 2 else "started"}]}
        )

    found = judge_records({rank: record(rank) for rank in range(3)})
    assert (found.kind, found.ranks, found.waiting) == ("never_arrived", (2,), (0, 1))
    assert found.text.startswith(
        "rank 2 called all_reduce, number 4 of PIPE (ranks 0-2), but its device has not begun it"
    )
