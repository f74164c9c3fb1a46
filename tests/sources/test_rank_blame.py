"""Which rank is the cause, where all ranks stand still or ended."""

from __future__ import annotations

from stepscope.sources.first_error import first_error_of
from stepscope.sources.rank_blame import blamed_ranks
from stepscope.store.layout import RunFolder
from stepscope.store.states import RankState
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
    assert blamed_ranks(past, 1, HUNG) == {}
    tell(folder, "hang_verdict", verdict="none", ranks=[], monotonic_ns=3_000_000)
    assert blamed_ranks(past, 0, HUNG) == {}


def test_the_rank_with_the_first_error_is_the_cause_of_a_crash(tmp_path):
    """After a crash the same rank is named first as by the diagnosis."""
    past = fleet(tmp_path)
    for file in sorted((past.path / "nodes").glob("*.json")):
        text = file.read_text(encoding="utf-8").replace('"running"', '"failed"')
        file.write_text(text, encoding="utf-8")
    first = first_error_of(past)
    assert first is not None
    rows = ranks_view(past)["rows"]
    assert [(row["rank"], row["blame"], row["is_notable"]) for row in rows][:2] == [
        (first.rank, "failed first", True),
        (1 if first.rank == 0 else 0, "", False),
    ]


def test_nobody_is_blamed_while_all_is_well(tmp_path):
    """A running job, or one with a single rank that failed, needs no cause: its states say enough."""
    past = fleet(tmp_path)
    running = [RankState("running")] * 3
    assert blamed_ranks(past, 0, running) == blamed_ranks(past, 0, [*running, RankState("failed")]) == {}
