"""Causes that others hide: ranks that look like those which wait for them, and innocent ranks that look guilty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stepscope.analysis.hang.collectives import judge_records
from stepscope.analysis.hang.record import FlightRecord

if TYPE_CHECKING:
    from stepscope.analysis.hang.suspicion import Suspicion

Row = tuple[str, str, int]
"""Group, operation, and its number in the group."""
GROUPS = {
    "0": ("default_pg", tuple(range(8))),
    "1": ("EXPERT", tuple(range(8))),
    "2": ("TENSOR", (0, 1, 2, 3)),
    "3": ("TENSOR", (4, 5, 6, 7)),
    **{str(10 + first): ("PIPE", (first, first + 4)) for first in range(4)},
}
ALL = frozenset(range(8))


def dump(rank: int, *waits: Row, done: tuple[Row, ...] = (), counts: dict[str, tuple[int, int]] | None = None) -> Any:
    """Return a dump: what is complete, then what waits; `counts`: the last enqueued and completed by group."""
    names = [name for name, (_, ranks) in GROUPS.items() if rank in ranks]
    entries = []
    for place, (group, name, number) in enumerate([*done, *waits]):
        is_p2p = name.startswith(("send", "recv"))
        entries.append(
            {
                "record_id": 100 + place,
                "pg_id": names.index(group),
                "process_group": (group, GROUPS[group][0]),
                "collective_seq_id": 0 if is_p2p else number,
                "p2p_seq_id": number if is_p2p else 0,
                "profiling_name": f"nccl:{name}",
                "state": "completed" if place < len(done) else "scheduled",
                "is_p2p": is_p2p,
            }
        )
    config = {name: {"name": name, "desc": GROUPS[name][0], "ranks": str(list(GROUPS[name][1]))} for name in names}
    status = {
        str(names.index(group)): {"last_enqueued_collective": first, "last_completed_collective": last}
        for group, (first, last) in (counts or {}).items()
    }
    return {"version": "2.9", "pg_config": config, "pg_status": status, "entries": entries}


def told(dumps: dict[int, Any]) -> Suspicion:
    """Judge dumps."""
    return judge_records({rank: FlightRecord.of(one) for rank, one in dumps.items()}, 8)


def tensor(rank: int) -> str:
    """Return the tensor group of a rank."""
    return "2" if rank < 4 else "3"


def hung(rank: int, calls: int = 3) -> Any:
    """Return a rank that waits for one that is missing among the experts; it has called so much since."""
    rows = [("1", "all_to_all", 9), (tensor(rank), "all_reduce", 5), (tensor(rank), "all_gather", 6)]
    return dump(rank, *rows[:calls])


@pytest.mark.parametrize("calls", [1, 2])
def test_a_rank_that_stopped_where_others_wait_is_named(calls: int) -> None:
    """It entered the collective in which another one is missing, and did not call what its peers called since."""
    found = told({rank: hung(rank, {1: 0, 6: calls}.get(rank, 3)) for rank in ALL})
    assert (found.kind, found.ranks, found.waiting) == ("never_arrived", (1, 6), (0, 2, 3, 4, 5, 7))
    assert "; rank 6 has not called what its peers called since" in found.text


def test_the_first_rank_may_wait_for_what_it_logs() -> None:
    """Programs print the loss on rank 0 alone: it stops earlier than its peers, and is no cause beside another."""
    found = told({rank: hung(rank, {1: 0, 0: 2}.get(rank, 3)) for rank in ALL})
    assert found.ranks == (1,)
    assert "; rank 0 has called less than its peers" in found.text
    assert told({rank: hung(rank, 2 if rank == 0 else 3) for rank in ALL}).ranks == (0,)


def test_ranks_that_ran_into_a_full_queue_are_no_cause() -> None:
    """One operation more or less of many that wait is chance."""
    rows = [("1", "all_to_all", 9), *((tensor(0), "all_reduce", number) for number in range(5, 45))]
    found = told({rank: dump(rank, *rows[: 40 + rank % 2]) if rank else dump(0) for rank in range(4)})
    assert 0 in found.ranks
    assert not {1, 2, 3} & set(found.ranks)


def test_stages_of_a_pipeline_are_not_compared() -> None:
    """The last stage may run on after a collective of all, while the first waits for it."""
    transfers = {rank: ((str(10 + rank % 4), "send 0->1" if rank < 4 else "recv 1<-0", 7),) for rank in ALL}
    dumps = {
        rank: dump(rank, ("0", "all_reduce", 9), *((("0", "barrier", 10),) * (rank > 3)), done=transfers[rank])
        for rank in ALL - {2}
    }
    assert told({**dumps, 2: dump(2, done=transfers[2])}).ranks == (2,)


def test_a_device_that_lags_is_named_though_nobody_waits_for_it() -> None:
    """Rank 1 never came; the device of rank 6 has not even completed what all others left before."""
    before = ("1", "all_gather", 8)
    dumps = {rank: dump(rank, ("1", "all_to_all", 9), done=(before,)) for rank in ALL - {1, 6}}
    dumps |= {1: dump(1, done=(before,)), 6: dump(6, before, ("1", "all_to_all", 9))}
    found = told(dumps)
    assert found.ranks == (1, 6)
    assert "the device of rank 6 did not even complete" in found.text


def test_a_rank_that_others_left_behind_in_all_to_all_waits_for_the_missing_one() -> None:
    """Ranks that exchange nothing with the missing one may leave: this proves nothing about the others."""
    row = ("1", "all_to_all", 9)
    dumps = {rank: dump(rank, row) if rank < 5 else dump(rank, done=(row,)) for rank in ALL - {1}}
    found = told({**dumps, 1: dump(1, counts={"1": (8, 8)})})
    assert found.ranks == (1,)


def test_counters_of_sends_do_not_count_as_collectives() -> None:
    """The last number of a group may be that of a send: a rank whose counter is far ahead may still be missing."""
    waits = {"process_group": ("0", "default_pg"), "collective_seq_id": 195, "p2p_seq_id": 14146, "pg_id": 0}
    entry = {**waits, "record_id": 1, "profiling_name": "nccl:all_reduce", "state": "scheduled", "is_p2p": False}
    dumps = {rank: {**dump(rank, counts={"0": (195, 194)}), "entries": [entry]} for rank in ALL - {2}}
    idle = {"1": (3, 3), "2": (3, 3), "12": (3, 3)}
    assert told({**dumps, 2: dump(2, counts={"0": (14145, 14145), **idle})}).ranks == (2,)


@pytest.mark.parametrize("counted", [True, False])
def test_a_transfer_that_the_other_end_completed_shows_whose_device_stands(counted: bool) -> None:
    """Rank 5 waits in a receive that rank 1 has sent: by the counters of their group, or as rank 1 came later on."""
    seen = {"11": (7, 7)} if counted else {}
    dumps = {
        1: dump(1, ("0", "barrier", 3), counts=seen),
        5: dump(5, ("11", "recv 1<-0", 7), ("0", "barrier", 3)),
    }
    dumps |= {rank: dump(rank, ("0", "barrier", 3)) for rank in ALL - {1, 5}}
    found = told(dumps)
    assert (found.ranks, found.kind) == ((5,), "never_arrived")


def test_a_circle_of_transfers_that_others_passed_is_no_fault_of_the_program() -> None:
    """Ranks 1 and 5 both send, as all others did before: one of their devices stands, and nobody knows which."""
    dumps = {rank: dump(rank, (str(10 + rank % 4), "recv 0<-1" if rank < 4 else "recv 1<-0", 9)) for rank in (0, 4)}
    dumps |= {1: dump(1, ("11", "send 0->1", 7)), 5: dump(5, ("11", "send 1->0", 8))}
    assert (told(dumps).kind, told(dumps).ranks) == ("collective_stuck", ())


def test_a_rank_without_a_record_is_no_cause_beside_one_that_is_proven() -> None:
    """Rank 1 never came. Rank 6 left no record: it may wait like the others, and only this is said."""
    found = told({rank: hung(rank, 0 if rank == 1 else 3) for rank in ALL - {6}})
    assert found.ranks == (1,)
    assert "; rank 6 left no record, and may be a cause, too" in found.text


def test_ranks_without_a_record_have_ended_together() -> None:
    """Others wait for rank 6 alone, which left no record; rank 1, which left none either, has ended, too."""
    found = told(
        {rank: dump(rank, (tensor(rank), "all_reduce", 5)) for rank in (4, 5, 7)}
        | {rank: dump(rank, (str(10 + rank), "recv 0<-1", 7)) for rank in (0, 2, 3)}
    )
    assert (found.kind, found.ranks) == ("dead_rank", (1, 6))


def test_ranks_of_groups_that_no_dump_describes_are_not_guessed() -> None:
    """Without a configuration nobody knows which rank of the job is number 0 of a group."""
    dumps = {rank: dump(rank, (str(10 + rank % 4), "send 1->0", 7)) for rank in (4, 5)}
    found = told({rank: {**one, "pg_config": {}} for rank, one in {**dumps, 0: dump(0), 1: dump(1)}.items()})
    assert found.ranks == ()


def test_a_rank_alone_in_a_collective_that_all_others_passed_is_named() -> None:
    """In a group with sends no counter says that the others left it; but they called what comes after it."""
    p2p = {"process_group": ("0", "default_pg"), "p2p_seq_id": 5, "profiling_name": "nccl:send 0->1", "is_p2p": True}
    dumps = {rank: dump(rank, ("1", "all_gather", 4), (tensor(rank), "all_reduce", 2)) for rank in ALL - {2}}
    dumps[0]["entries"].append({**p2p, "record_id": 1, "collective_seq_id": 0, "state": "completed"})
    found = told({**dumps, 2: dump(2, ("0", "all_reduce", 1), ("1", "all_gather", 4), ("2", "all_reduce", 2))})
    assert (found.kind, found.ranks) == ("never_arrived", (2,))


def test_each_operation_that_nobody_left_is_said() -> None:
    """Two groups stand, each in its own operation: one rank of each is the cause, and nobody knows which."""
    found = told({rank: dump(rank, (tensor(rank), "all_reduce", 5)) for rank in ALL})
    assert (found.kind, found.ranks) == ("collective_stuck", ())
    assert "all 4 ranks entered all_reduce, number 5 of TENSOR (ranks 0-3)" in found.text
    assert found.text.endswith("; the same holds for all_reduce, number 5 of TENSOR (ranks 4-7)")
