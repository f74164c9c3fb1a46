from __future__ import annotations

import numpy as np
import pytest

from stepscope.analysis.trace.collectives import align, extract, match, paired
from stepscope.analysis.trace.ranks import compare_ranks
from tests.analysis.trace_rig import Rig

REDUCE = "ncclDevKernel_AllReduce_Sum_f32"
STEP = 1000


def job(work: dict[int, list[float]], clocks: dict[int, int] | None = None, skip: dict[int, int] | None = None, **more):
    """Return ranks that compute for some time per step, then reduce; all leave together 50 µs after the last came."""
    count = len(next(iter(work.values())))
    begin = np.cumsum([0.0] + [max(own[step] for own in work.values()) + 50 for step in range(count)])
    traces = []
    for rank, own in work.items():
        shift = (clocks or {}).get(rank, 0)
        rig = Rig(rank=rank, origin=0)
        for step in range((skip or {}).get(rank, 0), count):
            at = begin[step] + shift
            launch = (at, at + 1)
            rig.launch(more.get("name", "sgemm"), launch, (at, at + own[step] * more.get("busy", 1.0)))
            rig.launch(REDUCE, launch, (at + own[step], begin[step + 1] + shift), stream=9)
        traces.append(extract(rig.trace()))
    return traces


def even(ranks: int, steps: int = 12) -> dict[int, list[float]]:
    """Return work that differs a little."""
    rng = np.random.default_rng(3)
    return {rank: (STEP + rng.normal(0, 5, steps)).round(1).tolist() for rank in range(ranks)}


def test_clocks_are_found_from_the_ends_of_collectives():
    """Hours between the clocks of two nodes come out to the microsecond."""
    report = compare_ranks(job(even(4), clocks={1: 7_200_000_000, 2: -350}))
    assert report["offset_us"] == pytest.approx([0, 7_200_000_000, -350, 0], abs=1)
    assert report["window_start_us"] == pytest.approx([0, 0, 0, 0], abs=30)


def test_a_rank_that_began_to_record_later_is_matched_all_the_same():
    """Its first collective is the third of the others."""
    work = {rank: [STEP + 37 * ((5 * step + rank) % 7) for step in range(12)] for rank in range(3)}
    found = match(job(work, skip={2: 2}))
    assert np.isfinite(found.end).sum(axis=0).tolist() == [12, 12, 10]
    offset, spread = align(found)
    assert spread < 1000
    assert abs(offset[2] - offset[0]) < 1000


def test_collectives_that_a_trace_lost_do_not_shift_the_others():
    """Where machines know the time of day, ends find each other though both ranks miss some."""
    ends = 1_000_000 * np.arange(1, 41) + np.random.default_rng(5).integers(-9_000, 9_000, 40)
    mine, theirs = np.delete(ends, [3, 4, 20]), np.delete(ends, [0, 9, 20, 33])
    found = paired(mine, theirs + 250_000, clock=200_000)
    shared = [place for place in range(len(theirs)) if found[place] != -1]
    assert len(shared) == 34
    assert all(mine[found[place]] == theirs[place] for place in shared)


def test_the_late_rank_is_named_and_what_it_costs():
    """Rank 2 computes 300 µs longer in every step: the others wait for it, inside their kernels."""
    work = even(4)
    work[2] = [value + 300 for value in work[2]]
    report = compare_ranks(job(work, clocks={2: 10**6}))
    (straggler,) = report["stragglers"]
    assert (straggler["rank"], straggler["last"], straggler["cause"]) == (2, 12, "compute")
    assert straggler["late_us"] == pytest.approx(12 * 300, rel=0.05)
    assert report["cost_percent"] == pytest.approx(100 * 300 / 1350, rel=0.1)
    assert report["waits_us"][0][2] == pytest.approx(12 * 300, rel=0.05)
    assert [one.kind for one in report["findings"]] == ["straggler", "waiting_for_peers"]


def test_a_device_that_idles_before_the_collective_is_the_hosts_fault():
    """The late rank does not compute longer: its device waits."""
    work = even(4)
    late = {3: [value + 300 for value in work.pop(3)]}
    report = compare_ranks(job(work | late, busy=0.5, clocks={}))
    slow = job({**work, **late}, busy=0.5)[3]
    assert report["stragglers"][0]["rank"] == 3
    assert slow.before[1:, 3].mean() > slow.before[1:, 1].mean()


def test_a_slow_node_is_several_stragglers():
    """Two ranks that are late together are both named, though each hides the other."""
    work = even(6)
    for rank in (4, 5):
        work[rank] = [value + 300 for value in work[rank]]
    report = compare_ranks(job(work))
    assert {entry["rank"] for entry in report["stragglers"]} == {4, 5}
    assert report["cost_percent"] > 15


def test_ranks_that_vary_alike_have_no_straggler():
    """Noise is not a straggler."""
    report = compare_ranks(job(even(8)))
    assert report["stragglers"] == []
    assert report["findings"] == []


def test_groups_are_matched_by_their_ranks():
    """Two groups of ranks reduce among themselves: nobody waits for the other group."""
    traces = []
    for rank, (group, work) in enumerate([("[0,1]", 100), ("[0,1]", 120), ("[2,3]", 500), ("[2,3]", 510)]):
        rig = Rig(rank=rank)
        for step in range(5):
            at = 1000 * step
            rig.launch(REDUCE, (at, at + 1), (at + work, at + 600), stream=9, group=group)
        traces.append(extract(rig.trace()))
    report = compare_ranks(traces)
    assert report["matched"] == 10
    assert np.array(report["waits_us"])[:2, 2:].sum() == 0


def test_collectives_of_the_host_align_ranks_without_a_device():
    """CPU training over gloo has stragglers too: here rank 1 computes longer."""
    traces = []
    for rank, work in enumerate((100, 300, 110)):
        rig = Rig(rank=rank)
        for step in range(6):
            at = 1000.0 * step + 5000 * rank
            rig.operator("aten::mm", at, at + work).annotation("gloo:all_reduce", at + work, at + 400, thread=2)
        traces.append(extract(rig.trace()))
    report = compare_ranks(traces)
    assert report["offset_us"] == [0, 5000, 10000]
    assert [(entry["rank"], entry["cause"]) for entry in report["stragglers"]] == [(1, "compute")]


def test_too_little_to_compare_is_said():
    """One rank, or ranks without collectives, give no report but a reason."""
    alone = compare_ranks([extract(Rig().launch("k", (0, 1), (2, 3)).trace())] * 2)
    assert alone["matched"] == 0
    assert "not enough data" in alone["note"]
    assert compare_ranks(job(even(1)))["matched"] == 0


def test_unknown_or_double_ranks_are_numbered_by_file():
    """Two files that both say rank 0 are two ranks."""
    traces = job(even(2))
    assert compare_ranks([traces[0], traces[0]])["ranks"] == [0, 1]
