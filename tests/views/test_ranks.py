"""Ranks as people read them: the worst first, in groups, in one sentence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.sources.rank_places import Whereabouts
from stepscope.sources.rank_table import RankRow, RankSheet
from stepscope.store.layout import RunFolder
from stepscope.store.reader import Past
from stepscope.views.ranks import (
    groups,
    map_view,
    ordered,
    ranks_view,
    rounded,
    short_node,
    sorted_rows,
    step_view,
    summary,
)
from tests.exporters.recorded import tell
from tests.fleet import fleet

LATE = "rank 5 on a is late by 50 ms in a step of 200 ms; 3 other ranks late too"


def table(*rows):
    return RankSheet(0, rows, (0, 99), 0.2)


def test_the_sentence_names_the_late_rank(tmp_path):
    """Number of ranks and nodes, how far they are, who is late, by how much, and in which phase."""
    told = ranks_view(fleet(tmp_path, late=3))["summary"]
    assert told == (
        "4 ranks on 2 nodes, step 199; rank 3 on node-1 is late by 40 ms in a step of 200 ms, most of it in data"
    )


def test_the_sentence_of_a_healthy_job_says_so(tmp_path):
    """A difference of less than a twentieth of a step is not called late."""
    assert ranks_view(fleet(tmp_path))["summary"] == "4 ranks on 2 nodes, step 199; no rank is late"


def test_the_sentence_names_ranks_that_ended_or_hang():
    """A rank that is not running is named before any that is late; if all ended alike, that is said once."""
    rows = [
        RankRow(0, "a", "running", step=5),
        RankRow(1, "b", "killed", step=3),
        RankRow(2, "b", "running", stall="hung"),
    ]
    told = summary(table(*rows))
    assert "rank 1 on b was killed" in told
    assert "rank 2 on b is hung" in told
    assert "all are lost" in summary(table(*(replace(row, state="lost", stall="") for row in rows)))


def test_the_cause_of_a_hang_comes_first(tmp_path):
    """The verdict of the watchers is there while it stands, and its rank is the first, whoever is late."""
    past = fleet(tmp_path, late=3, stall="hung")
    assert ranks_view(past)["hang"] is None
    said = {"verdict": "never_arrived", "ranks": [1], "waiting": [0, 2, 3], "text": "Rank 1 never arrived."}
    tell(
        RunFolder(past.path), "hang_verdict", **said, remedy="look", evidence={"steps": ["none ended"]}, confidence=0.9
    )
    told = ranks_view(Past(RunFolder(past.path)))
    assert [row["rank"] for row in told["rows"]][:2] == [1, 3]
    assert (told["hang"]["kind"], told["hang"]["ranks"]) == ("never_arrived", [1])
    assert told["hang"]["evidence"] == {"steps": ["none ended"]}
    tell(RunFolder(past.path), "hang_verdict", verdict="none", text="The ranks move again.", monotonic_ns=2_000_000)
    assert ranks_view(Past(RunFolder(past.path)))["hang"] is None


def test_the_worst_come_first():
    """Ranks that ended or hang, then the latest; or by number, or by state."""
    rows = [RankRow(n, "a", "running", late_seconds=n / 100) for n in range(3)]
    every = table(*rows, RankRow(3, "a", "failed"))
    assert [row.rank for row in ordered(every)] == [3, 2, 1, 0]
    rows = [{"rank": row.rank, "is_well": row.is_well, "stall": "", "state": row.state} for row in ordered(every)]
    assert [row["rank"] for row in sorted_rows(rows)] == [3, 2, 1, 0]
    assert [row["rank"] for row in sorted_rows(rows, "rank")] == [0, 1, 2, 3]
    assert [row["rank"] for row in sorted_rows(rows, "state")] == [3, 0, 1, 2]


def test_when_most_ranks_ended_the_latest_still_come_first():
    """After the end of a job its state says nothing about a single rank."""
    rows = [RankRow(n, "a", "lost", late_seconds=n / 100) for n in range(4)]
    assert [row.rank for row in ordered(table(*rows))] == [3, 2, 1, 0]


def test_the_cause_of_a_crash_comes_first_though_all_ranks_failed():
    """After a crash every rank has failed; the one that failed first is named first, and the others are counted."""
    rows = [RankRow(n, "a", "failed", late_seconds=n / 100) for n in range(6)]
    rows[2] = replace(rows[2], state="killed")
    found = RankSheet(0, rows, (0, 99), 0.2, blamed={4: "failed first"})
    assert [row.rank for row in ordered(found)] == [4, 2, 5, 3, 1, 0]
    told = "6 ranks on 1 node; rank 4 on a failed first; rank 2 on a was killed; 5 ranks failed; "
    assert summary(found) == told + LATE
    assert "failed first" not in summary(table(*rows))


def test_nobody_is_late_is_not_said_of_a_crash():
    """Where ranks ended, it does not matter that none of them was late."""
    rows = [RankRow(n, "a", "failed", late_seconds=0.0) for n in range(3)]
    assert summary(table(*rows)) == "3 ranks on 1 node; all failed"


def test_groups_show_their_worst_rank(tmp_path):
    """Ranks are grouped by node or coordinate, the group with the worst rank first."""
    view = ranks_view(fleet(tmp_path, nodes=3, late=3))
    assert view["dimensions"] == ["node"]
    found = groups(view["rows"], "node")
    assert (found[0]["group"], found[0]["worst"]["rank"], found[0]["late"]) == ("node-1", 3, 1)
    assert sorted(rank for group in found for rank in group["ranks"]) == list(range(6))


def test_a_rank_without_a_coordinate_is_in_a_group_of_its_own():
    """A place that is unknown is called so."""
    rows = [
        {"rank": 0, "node": "", "coordinates": {}, "is_late": False, "stall": "", "state": "", "behind_steps": None}
    ]
    assert [group["group"] for group in groups(rows, "data")] == ["unknown"]
    assert Whereabouts().coordinates == {}


def test_a_step_shows_a_rank_beside_the_median(tmp_path):
    """Every phase of a rank beside the median of the others; without a rank, the latest in that step."""
    past = fleet(tmp_path, late=2)
    shown = step_view(past, (50, 50))
    assert (shown["rank"], shown["ranks"], shown["host"]) == (2, 4, "node-1")
    data = next(row for row in shown["phases"] if row["phase"] == "data")
    assert (data["seconds"], data["usual_seconds"]) == (pytest.approx(0.05), pytest.approx(0.01))
    assert step_view(past, (50, 60), 1)["late_seconds"] == pytest.approx(0.0)
    assert step_view(past, (5000, 5000))["step_seconds"] is None


def test_a_map_is_plain_data(tmp_path):
    """Missing values are null, and every rank has a value for every bucket."""
    shown = map_view(fleet(tmp_path, late=1), "step", (100, 300), 50)
    assert shown["ranks"] == [0, 1, 2, 3]
    assert {len(row) for row in shown["values"]} == {len(shown["edges"]) - 1}
    assert shown["unit"] == "seconds"


@given(st.lists(st.floats(), max_size=20))
def test_rounded_numbers_stay_near(values):
    """Three digits are kept of any finite number, and others are null."""
    for short, value in zip(rounded(np.array(values, float)), values, strict=True):
        assert (short is None) == (not np.isfinite(value))
        if short is not None and 1e-290 < abs(value) < 1e290:
            assert short == pytest.approx(value, rel=6e-3)


@pytest.mark.parametrize(("name", "short"), [("a.0f3c9b12", "a"), ("a.b.example", "a.b.example"), ("node", "node")])
def test_a_node_is_shown_by_its_host_name(name, short):
    """The mark that tells nodes of the same name apart is left out."""
    assert short_node(name) == short
