"""Which rank is the cause, where all ranks stand still or ended."""

from __future__ import annotations

from stepscope.sources.first_error import first_error_of
from stepscope.sources.rank_blame import blamed_ranks
from stepscope.store.layout import RunFolder
from stepscope.store.states import NodeState, RankState
from stepscope.views.ranks import ranks_view
from tests.exporters.recorded import tell
from tests.fleet import fleet

HUNG = [RankState("running", stall="hung") for _ in range(4)]


def test_the_verdict_of_the_watchers_names_the_cause_of_a_hang(tmp_path):
    """The newest verdict of the attempt counts, and none once the ranks go on or the verdict says so."""
    past = fleet(tmp_path)
    folder = RunFolder(past.path)
    assert blamed_ranks(past, 0, HUNG) == {}
    tell(folder, "hang_verdict", verdict="never_arrived", ranks=[1])
    tell(folder, "hang_verdict", verdict="never_arrived", ranks=[3, "x"], monotonic_ns=2_000_000)
    assert blamed_ranks(past, 0, HUNG) == {3: "causes the hang"}
    assert blamed_ranks(past, 0, [RankState("running")] * 4) == {}
    assert blamed_ranks(past, 0, [RankState("finished", stall="hung")] * 4) == {}
    assert blamed_ranks(past, 0, [*HUNG[1:], RankState("finished")]) == {3: "causes the hang"}
    assert blamed_ranks(past, 1, HUNG) == {}
    tell(folder, "hang_verdict", verdict="none", ranks=[], monotonic_ns=3_000_000)
    assert blamed_ranks(past, 0, HUNG) == {}


def test_the_rank_with_the_first_error_is_the_cause_of_a_crash(tmp_path):
    """After a crash the same rank is named first as by the diagnosis."""
    past = fleet(tmp_path)
    end(past, lambda rank: "ValueError: bad label" if rank == 2 else "RuntimeError: Connection closed by peer")
    first = first_error_of(past)
    assert first is not None
    assert first.rank == 2
    rows = ranks_view(past)["rows"]
    assert [(row["rank"], row["blame"], row["is_notable"]) for row in rows][:2] == [
        (2, "failed first", True),
        (0, "", False),
    ]


def test_of_ranks_that_ended_the_same_way_none_was_first(tmp_path):
    """Somebody ended the whole job."""
    past = fleet(tmp_path)
    end(past, lambda _: "killed by SIGTERM", "killed")
    assert [row["blame"] for row in ranks_view(past)["rows"]] == [""] * 4


def end(past, cause, state="failed"):
    """Let all ranks of a run end, one after the other."""
    for file in (past.path / "nodes").glob("*.json"):
        node = NodeState.load(file)
        for number, rank in node.ranks.items():
            rank.state, rank.cause, rank.ended = state, cause(number), node.time + number
        node.save(RunFolder(past.path))


def test_nobody_is_blamed_while_all_is_well(tmp_path):
    """A running job, or one with a single rank that failed, needs no cause: its states say enough."""
    past = fleet(tmp_path)
    running = [RankState("running")] * 3
    assert blamed_ranks(past, 0, running) == blamed_ranks(past, 0, [*running, RankState("failed")]) == {}
