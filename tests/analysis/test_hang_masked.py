"""Causes that others hide: ranks that look like those which wait for them, and innocent ranks that look guilty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


def test_ranks_of_groups_that_no_dump_describes_are_not_guessed() -> None:
    """Without a configuration nobody knows which rank of the job is number 0 of a group."""
    dumps = {rank: dump(rank, (str(10 + rank % 4), "send 1->0", 7)) for rank in (4, 5)}
    found = told({rank: {**one, "pg_config": {}} for rank, one in {**dumps, 0: dump(0), 1: dump(1)}.items()})
    assert found.ranks == ()
