"""The query of the charts beside a plain scan of every point."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.core.ring import NO_STEP
from stepscope.store.block_cache import BlockCache
from stepscope.store.curves import Ask, curves, spans
from stepscope.store.layout import Writer
from stepscope.store.reader import Past
from tests.exporters.recorded import CREATED, leave_tail, make_run, points_of, seal_points
from tests.fleet import fleet

STEPS, SPIKE = 20_000, 12_345


@pytest.fixture(scope="module")
def past(tmp_path_factory):
    """A run of two ranks in two sealed units and a tail, with a spike of one point and a NaN."""
    folder = make_run(tmp_path_factory.mktemp("curves"))
    random = np.random.default_rng(1)
    for rank in (0, 1):
        value = random.normal(2, 0.1, STEPS)
        value[SPIKE + rank], value[777] = 1000.0 + rank, np.nan
        half = STEPS // 2
        for number, part in enumerate((value[:half], value[half:])):
            first = number * half
            points = points_of({"loss": part, "few": part[:50]}, rank=rank, first=first)
            seal_points(folder, points, number, writer=Writer(f"node{rank}", 0))
    leave_tail(folder, [{"cpu/usage_ratio": number / 10} for number in range(10)], rank=-1)
    return Past(folder)


def scanned(past, name, rank, ends=None):
    series = past.series(name, rank=rank)
    low, high = ends or (-(2**62), 2**62)
    keep = (series.step >= low) & (series.step <= high)
    return series.step[keep], series.value[keep]


def of_curve(part, name, rank):
    for first, last in spans(part):
        row = part.select(slice(first, last))
        if (row.names[row.name[0]], row.rank[0]) == (name, rank):
            return row
    return None


@settings(max_examples=60)
@given(
    st.integers(-10, STEPS + 10),
    st.integers(0, STEPS + 10),
    st.integers(10, 900),
    st.sampled_from([None, 0, 1]),
)
def test_buckets_hold_every_point_of_the_range_once(past, first, length, points, rank):
    """Counts, extremes, means, last values and non-finite points of any range and rank are those of a plain scan."""
    ends = (first, first + length)
    found = curves(past, Ask(("loss",), points, None if rank is None else (rank,), steps=ends))
    for number in (0, 1) if rank is None else (rank,):
        step, value = scanned(past, "loss", number, ends)
        few, many = of_curve(found.points, "loss", number), of_curve(found.blocks, "loss", number)
        if few is not None:
            assert many is None
            np.testing.assert_array_equal(few.step, step)
            np.testing.assert_array_equal(few.value, value)
        elif many is None:
            assert not len(step)
        else:
            finite = np.isfinite(value)
            assert len(many) <= points
            assert int(many.count.sum()) == len(value)
            assert int(many.nonfinite.sum()) == int((~finite).sum())
            assert np.nanmin(many.min) == value[finite].min()
            assert np.nanmax(many.max) == value[finite].max()
            assert many.last[-1] == value[-1] or np.isnan(value[-1])
            weight = many.count - many.nonfinite
            assert np.nansum(many.mean * weight) == pytest.approx(value[finite].sum())
            assert np.all(np.diff(many.last_step) > 0)
            assert many.low_step.min() >= ends[0]
            assert many.high_step.max() <= ends[1]


@pytest.mark.parametrize("width", [1, 10, 100, 1000, 5000, STEPS])
def test_a_spike_of_one_point_is_there_at_every_zoom(past, width):
    """However wide the range is, the highest point of the curve is the spike, at its own step."""
    found = curves(past, Ask(("loss",), 50, (0,), steps=(SPIKE - width, SPIKE + width)))
    if len(found.blocks):
        at = int(np.nanargmax(found.blocks.max))
        assert (found.blocks.max[at], found.blocks.max_step[at]) == (1000.0, SPIKE)
    else:
        at = int(np.nanargmax(found.points.value))
        assert (found.points.value[at], found.points.step[at]) == (1000.0, SPIKE)


def test_a_range_of_time_is_that_of_the_steps_at_the_time(past):
    """Points are a millisecond apart here, so a range of time holds the steps of that time."""
    by_time = curves(past, Ask(("loss",), 100, (0,), times=(CREATED + 5_000_000, CREATED + 9_000_000)))
    by_step = curves(past, Ask(("loss",), 100, (0,), steps=(5000, 9000)))
    assert int(by_time.blocks.count.sum()) == int(by_step.blocks.count.sum()) == 4001


def test_samples_without_steps_are_found_by_time_only(past):
    """A machine's sample belongs to no step: a range of steps leaves it out, one of time does not."""
    everything = curves(past, Ask(("cpu/usage_ratio",)))
    assert set(everything.points.step.tolist()) == {NO_STEP}
    assert not len(curves(past, Ask(("cpu/usage_ratio",), steps=(0, 10))).points)
    late = curves(past, Ask(("cpu/usage_ratio",), times=(CREATED + 5000, CREATED + 2**40)))
    assert len(late.points) == 5


def test_folded_ranks_are_a_band(past):
    """The ranks become one curve: the lowest, the highest and the mean of all their points in each stretch."""
    found = curves(past, Ask(("loss",), 100, fold=True))
    assert found.folded
    assert len(list(spans(found.blocks))) == 1
    assert len(found.blocks) <= 101
    assert int(found.blocks.count.sum()) == 2 * STEPS
    assert np.nanmax(found.blocks.max) == 1001.0
    values = np.concatenate([scanned(past, "loss", rank)[1] for rank in (0, 1)])
    weight = found.blocks.count - found.blocks.nonfinite
    assert np.nansum(found.blocks.mean * weight) / weight.sum() == pytest.approx(np.nanmean(values))


def test_the_rank_farthest_from_the_mean_is_named(tmp_path):
    """Beside the folded curve stands that of the worst rank, under its rank + 1; of ranks that agree, none does."""
    found = curves(fleet(tmp_path, nodes=4, late=5), Ask(("phase/data", "phase/forward"), 100, fold=True, worst=True))
    shown = {(found.blocks.names[found.blocks.name[at]], int(found.blocks.rank[at])) for at, _ in spans(found.blocks)}
    assert shown == {("phase/data", 0), ("phase/data", 6), ("phase/forward", 0)}
    own = found.blocks.select(found.blocks.rank == 6)
    assert own.mean == pytest.approx(0.05)
    assert int(own.count.sum()) == 200


def test_names_that_are_not_there_are_left_out(past):
    """A name that the run does not have is no curve, and no error."""
    found = curves(past, Ask(("nothing", "few")))
    assert set(found.points.names) == {"few"}
    assert len(curves(past, Ask(())).points) == 0


def test_a_zoom_gets_its_own_resolution(past):
    """A narrow range of a long series has as many buckets as were asked for, not those of the whole."""
    whole = past.series("loss", rank=0, points=100)
    part = past.series("loss", rank=0, step_range=(10_000, 11_999), points=100)
    assert len(whole.buckets) <= 160
    assert 80 <= len(part.buckets) <= 160


def test_totals_that_are_kept_are_those_of_a_scan(tmp_path):
    """Totals of every series are the same with and without a cache, and follow what is sealed and what is not yet."""
    folder, cache = make_run(tmp_path), BlockCache()
    value = np.random.default_rng(2).normal(2, 0.1, 6000)
    seal_points(folder, points_of({"loss": value[:4000], "few": value[:3]}, rank=0), 0, writer=Writer("node", 0))

    def counted():
        found, plain = (Past(folder, cache=one).totals() for one in (cache, None))
        assert [getattr(found, key).tolist() for key in ("count", "min", "max", "mean", "last")] == [
            getattr(plain, key).tolist() for key in ("count", "min", "max", "mean", "last")
        ]
        return dict(zip([found.names[at] for at in found.name], found.count.tolist(), strict=True))

    assert counted() == counted() == {"loss": 4000, "few": 3}
    seal_points(folder, points_of({"loss": value[4000:]}, rank=0, first=4000), 1, writer=Writer("node", 0))
    assert counted() == {"loss": 6000, "few": 3}
    leave_tail(folder, [{"loss": 1.0}, {"loss": 9.0}], rank=-1)
    with_tail = Past(folder, cache=cache).totals(["loss"])
    assert int(with_tail.count.sum()) == 6002
    assert float(with_tail.max.max()) == 9.0


def test_a_run_without_sealed_rows_has_totals(tmp_path):
    """What is only in the tail counts."""
    folder = make_run(tmp_path)
    leave_tail(folder, [{"loss": 1.0}, {"loss": 3.0}])
    found = Past(folder, cache=BlockCache()).totals()
    assert (found.count.tolist(), found.mean.tolist()) == ([2], [2.0])
