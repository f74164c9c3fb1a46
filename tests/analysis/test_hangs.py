"""Hangs: every planted cause is named, nothing else is, and no healthy pause is taken for a hang."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.planted_hangs import OWN, STEP, Planted, Recorders, collective, healthy, job, planted, thread, waits
from stepscope.analysis.hang.collectives import judge_records
from stepscope.analysis.hang.evidence import FlightRecord, HangEvidence, RankEvidence
from stepscope.analysis.hang.ras_report import read_report
from stepscope.analysis.hang.record import MOST_MEMBERS, compact
from stepscope.analysis.hang.spelling import who
from stepscope.analysis.hang.stacks import groups, said
from stepscope.analysis.hang.verdict import KINDS, judge
from stepscope.core.remedies import remedy

SMALL = 8
HANGS = [one for one in planted() if len(one.evidence.ranks) <= SMALL]
CALM = healthy()


@pytest.mark.parametrize("case", HANGS, ids=lambda case: case.name)
def test_a_planted_hang_is_named(case: Planted) -> None:
    """Kind and ranks are right, the cause does not wait, and the verdict says why and what to do."""
    found = judge(case.evidence)
    assert (found.kind, found.ranks) == (case.kind, case.ranks), found.text
    assert not set(found.ranks) & set(found.waiting)
    assert found.text.endswith(".")
    assert found.remedy
    assert any(found.evidence.values())
    assert 0.3 < found.confidence < 1


@pytest.mark.parametrize(("backend", "done"), [("gloo", (0, 1)), ("gloo", (0, 1, 2, 3, 4, 5)), ("nccl", (0, 1, 2))])
def test_a_network_that_breaks_within_a_collective_is_no_ranks_fault(backend: str, done: tuple[int, ...]) -> None:
    """Some ranks got their data in time, and wait for the others in the next collective."""
    job = Recorders(8, backend=backend)
    job.step(*STEP)
    job.only(tuple(range(8)), *STEP[:2])
    job.broken.add(("world", 14))
    job.only(done, STEP[2])
    records = job.records()
    for rank in done:
        *before, last = records[rank].entries
        later = replace(last, name="barrier", collective=15, number=last.number + 1)
        records[rank] = replace(records[rank], entries=(*before, replace(last, is_done=True), later))
    found = judge_records(records, 8)
    assert (found.kind, found.ranks) == ("collective_stuck", ()), found.text
    assert f"and only {who(done)} have left it" in found.text


@pytest.mark.parametrize("case", CALM, ids=lambda case: case.name)
def test_a_healthy_pause_is_no_hang(case: Planted) -> None:
    """A job that moves, pauses for a reason, or has ended gets no cause and no remedy."""
    found = judge(case.evidence)
    assert (found.kind, found.ranks, found.remedy) == ("none", (), ""), found.text


def test_every_kind_is_planted_and_has_its_own_remedy() -> None:
    """What can be said is tested, and each says something else to do."""
    told = {case.kind for case in planted()}
    assert told == set(KINDS) - {"none", "unknown"}
    assert len({remedy("hang", kind) for kind in told - {"outside_torch"}}) == len(told) - 1


def test_stacks_are_grouped_as_a_person_would() -> None:
    """62 ranks at one place are one sentence, and the outlier is another."""
    loads = thread({"file": "/w/data.py", "line": 41, "function": "read"})
    evidence = job(64, r9={"stacks": loads, "waits": waits("R")}, r11={"stacks": loads, "waits": waits("R")})
    told = said(groups(evidence.ranks))
    assert told == [
        "ranks 0-8, 10 and 12-63 wait in all_reduce at train.py:88",
        "ranks 9 and 11 are in read at data.py:41",
    ]


def test_sources_that_agree_raise_the_confidence_and_others_lower_it() -> None:
    """The more independent sources name the same rank, the surer the verdict."""
    late = Recorders(8)
    late.step(("world", "all_reduce", 8))
    late.only(tuple(range(7)), ("world", "all_reduce", 8))
    alone = late.evidence()
    records = late.records()
    seen = job(8, r7={"stacks": OWN, "waits": waits("R")})
    both = replace(seen, ranks=tuple(replace(one, record=records[one.rank]) for one in seen.ranks))
    other = job(8, r3={"stacks": OWN, "waits": waits("R")})
    against = replace(other, ranks=tuple(replace(one, record=records[one.rank]) for one in other.ranks))
    assert judge(both).confidence > judge(alone).confidence > judge(against).confidence
    assert judge(against).ranks == (7,)


def test_a_dead_rank_explains_what_others_wait_for() -> None:
    """A rank that was killed is the cause even if stacks show that another one also does something else."""
    killed = {"state": "killed", "cause": "killed by SIGKILL", "stall": "", "stacks": (), "waits": ()}
    found = judge(job(4, r2=killed, r1={"stacks": OWN, "waits": waits("R")}))
    assert (found.kind, found.ranks) == ("dead_rank", (2,))
    assert "SIGKILL" in found.text


def test_nothing_known_is_said_to_be_unknown() -> None:
    """Without stacks and records nobody is accused."""
    bare = tuple(RankEvidence(rank, stall="hung", step=5, silent_seconds=30.0) for rank in range(4))
    assert judge(HangEvidence(bare)).kind == "unknown"
    assert judge(HangEvidence()).kind == "unknown"


def test_a_send_that_nobody_receives_leads_to_the_rank_that_stands() -> None:
    """The wait goes on from a pipeline stage to the group in which its neighbour waits."""
    config = {"0": {"name": "0", "desc": "pp", "ranks": "[0, 2]"}, "1": {"name": "1", "desc": "tp", "ranks": "[2, 3]"}}

    def record(**entry: Any) -> FlightRecord:
        return FlightRecord.of({"pg_config": config, "entries": [{"record_id": 1, "state": "scheduled", **entry}]})

    sends = record(process_group=("0", "pp"), p2p_seq_id=7, profiling_name="nccl:send 0->1", is_p2p=True)
    waits_in = record(process_group=("1", "tp"), collective_seq_id=3, profiling_name="nccl:all_reduce")
    found = judge_records({0: sends, 2: waits_in, 3: FlightRecord.of({"pg_config": config, "entries": []})})
    assert (found.kind, found.ranks, found.waiting) == ("never_arrived", (3,), (0, 2))


def test_a_device_that_did_not_complete_what_others_have_is_the_cause() -> None:
    """A rank whose oldest operation others have left waits for nobody: its device stands."""
    late = Recorders(4)
    late.step(("world", "all_reduce", 8))
    late.only((0, 1, 2), ("world", "all_reduce", 8))
    records = late.records()
    entries = tuple(replace(entry, is_done=False) for entry in records[3].entries)
    records[3] = replace(records[3], entries=entries)
    found = judge_records(records)
    assert found.ranks == (3,)
    assert "did not even complete" in found.text


def test_a_record_fits_an_event_with_its_newest_entries() -> None:
    """A long record is cut at its old end, and reads as before."""
    rows = [
        {"record_id": at, "process_group": ("0", "default_pg"), "profiling_name": "gloo:barrier"} for at in range(9)
    ]
    text = compact({"version": "2.10", "entries": rows}, 400)
    record = FlightRecord.of_json(text)
    assert len(text) <= 400
    assert 0 < len(record.entries) < 9
    assert record.entries[-1].number == 8


def test_ranks_of_a_small_communicator_get_the_numbers_of_the_job() -> None:
    """RAS numbers the ranks of each communicator from 0; process and device tell which they are."""

    def rows(pids: list[int], counts: list[int]) -> list[dict[str, Any]]:
        pairs = enumerate(zip(pids, counts, strict=True))
        return [{"rank": at, "host": "a", "pid": pid, "collective_counts": {"AllReduce": n}} for at, (pid, n) in pairs]

    world, small = rows([10, 11, 12, 13], [5] * 4), rows([12, 13], [8, 7])
    report = read_report({"communicators": [{"hash": "1", "ranks": world}, {"hash": "2", "ranks": small}]})
    assert report is not None
    assert dict(report.communicators[1].counts) == {2: {"AllReduce": 8}, 3: {"AllReduce": 7}}


def test_ranks_are_written_in_short() -> None:
    """Spans, lists, and a number where a list would be long."""
    assert who([3]) == "rank 3"
    assert who([0, 1, 2, 5]) == "ranks 0-2 and 5"
    assert who([1, 2]) == "ranks 1 and 2"
    assert who(range(0, 100, 2)) == "50 ranks"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
KEYS = ("record_id", "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "profiling_name", "input_sizes")
ROWS = st.dictionaries(st.sampled_from((*KEYS, "state", "retired", "is_p2p", "frames", "input_dtypes")), VALUES)


@given(st.lists(st.lists(ROWS, max_size=2), max_size=3), VALUES, VALUES)
def test_any_record_is_judged_without_an_error(dumps: list[list[Any]], config: Any, status: Any) -> None:
    """Whatever a dump holds, a verdict follows that is plain JSON."""
    facts = [{"version": "2.9", "pg_config": config, "pg_status": status, "entries": rows} for rows in dumps]
    ranks = tuple(RankEvidence(at, stall="hung", record=FlightRecord.of(one)) for at, one in enumerate(facts))
    found = judge(HangEvidence(ranks, len(ranks)))
    assert found.kind in KINDS
    assert json.dumps(found.as_dict())


@given(
    st.lists(st.dictionaries(st.sampled_from(["thread", "name", "frames", "state", "waits_in"]), VALUES), max_size=3)
)
def test_any_stack_is_judged_without_an_error(threads: list[dict[str, Any]]) -> None:
    """Events may hold anything; what is no stack is left out."""
    frames = [{**one, "frames": [{"file": "a.py", "line": 1, "function": "f"}]} for one in threads]
    ranks = (
        RankEvidence(0, stall="hung", stacks=tuple(frames), waits=tuple(threads)),
        RankEvidence(1, stall="hung", stacks=collective()),
    )
    assert judge(HangEvidence(ranks)).kind in KINDS


def test_groups_that_share_a_long_list_of_ranks_are_limited():
    """A pickle of a few KiB can name one list thousands of times; reading and keeping it stay cheap."""
    shared = list(range(600_000))
    facts = {"entries": [], "pg_config": {str(name): {"ranks": shared} for name in range(4000)}}
    record = FlightRecord.of(facts)
    assert sum(len(group.ranks) for group in record.groups) == MOST_MEMBERS
    assert compact(facts) == '{"entries":[]}'


def test_a_record_that_is_cut_is_no_proof() -> None:
    """A rank that others wait for is named with doubt if its record is cut, and not beside one that is proven."""
    job = Recorders(4)
    job.step(*STEP)
    job.only((0, 2), *STEP)
    records = {rank: replace(record, status={}) for rank, record in job.records().items()}
    proven = judge_records(records, 4, cut={3})
    assert (proven.ranks, proven.kind) == ((1,), "never_arrived")
    assert "the record of rank 3 is not whole" in proven.sentences[-1]
    job.only((1,), *STEP)
    records = {rank: replace(record, status={}) for rank, record in job.records().items()}
    doubtful = judge_records(records, 4, cut={3})
    assert doubtful.ranks == (3,)
    assert doubtful.confidence < judge_records(records, 4).confidence / 2
