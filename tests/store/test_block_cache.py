"""Blocks that are kept between questions, beside the same questions read anew."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.store import parquet
from stepscope.store.block_cache import LIMIT, BlockCache
from stepscope.store.checksum import Checked
from stepscope.store.curves import Ask, curves
from stepscope.store.layout import Writer
from stepscope.store.parquet import Selection, connect
from stepscope.store.reader import Past
from stepscope.store.sealed import open_sealed, read_blocks
from tests.exporters.recorded import CREATED, leave_tail, make_run, points_of, seal_points
from tests.store.recorded import list_sealed

STEPS = 6000
SMALL = 120_000
"""Bytes that some of the blocks of the run fit into, but not all."""


def recorded(path):
    """Make a run of two ranks in two sealed units each, with series too short for blocks, and a tail."""
    folder, random, half = make_run(path), np.random.default_rng(1), STEPS // 2
    for rank in (0, 1):
        value = random.normal(2, 0.1, STEPS)
        value[1234 + rank], value[777] = 1000.0, np.nan
        for number in (0, 1):
            part = value[number * half : (number + 1) * half]
            series = {"loss": part, "rate": part * 2, "few": part[:50]}
            points = points_of(series, rank=rank, first=number * half)
            seal_points(folder, points, number, writer=Writer(f"node{rank}", 0))
    leave_tail(folder, [{"cpu/usage_ratio": number / 10} for number in range(10)], rank=-1)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The run, which no test changes."""
    return recorded(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def connection():
    """One connection to read with."""
    with connect() as made:
        yield made


@pytest.fixture(scope="module", params=[LIMIT, SMALL, 0])
def cache(request):
    """A cache that holds everything, one that must drop what is old, one that holds nothing; filled by all examples."""
    return BlockCache(request.param)


def same(found, expected):
    """Compare every column; NaN are equal."""
    for field in fields(expected):
        np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name), field.name)
    return True


ENDS = st.none() | st.tuples(st.integers(-10, STEPS + 10), st.integers(0, STEPS + 10)).map(lambda of: (of[0], sum(of)))
ASKS = st.builds(
    Ask,
    st.sampled_from([("loss",), ("rate", "loss"), ("few", "loss", "cpu/usage_ratio"), ("nothing", "rate")]),
    st.integers(10, 90),
    st.sampled_from([None, (0,), (1, 0)]),
    st.sampled_from([None, (0,), (7,)]),
    fold=st.booleans(),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(ASKS, ENDS, st.booleans())
def test_a_chart_is_the_same_with_and_without_a_cache(folder, connection, cache, ask, ends, by_time):
    """Whatever was asked before, and whatever was dropped since, no column of an answer differs."""
    if ends is not None:
        times = (CREATED + ends[0] * 1000, CREATED + ends[1] * 1000)
        ask = Ask(
            *(getattr(ask, key) for key in ("names", "points", "ranks", "attempts")),
            *((None, times) if by_time else (ends, None)),
            fold=ask.fold,
        )
    found = curves(Past(folder, connection, cache), ask)
    expected = curves(Past(folder, connection), ask)
    for part in ("points", "blocks"):
        assert same(getattr(found, part), getattr(expected, part))


@settings(max_examples=40)
@given(
    st.sampled_from([64, 4096]),
    st.sets(st.sampled_from(["loss", "rate", "few", "nothing"])),
    st.sampled_from([None, (0,)]),
    ENDS,
)
def test_blocks_are_the_same_with_and_without_a_cache(folder, connection, cache, level, names, ranks, ends):
    """Blocks of the pyramid and those that are built for short series come in the same order with the same figures."""
    units = [open_sealed(path) for path in list_sealed(folder.path / "metrics")]
    selection = Selection(names, ranks, None, ends, level)
    found, problems = read_blocks(units, selection, connection=connection, cache=cache)
    expected, _ = read_blocks(units, selection, connection=connection)
    assert not problems
    assert len(found) == len(expected)
    named = [[blocks.names[code] for code in blocks.name.tolist()] for blocks in (found, expected)]
    assert named[0] == named[1]
    for field in fields(expected)[2:]:
        np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name), field.name)


def test_no_more_is_kept_than_allowed(folder, connection):
    """The bytes never exceed the limit, and they are those of what is kept."""
    cache = BlockCache(SMALL)
    for names in (("loss",), ("rate",), ("loss", "rate")):
        curves(Past(folder, connection, cache), Ask(names, 20))
        assert 0 < cache.bytes <= SMALL


def test_what_is_kept_is_not_read_again(folder):
    """A second question is answered without DuckDB, for other ranges and fewer names too."""
    cache = BlockCache()
    with connect() as connection:
        whole = curves(Past(folder, connection, cache), Ask(("loss", "rate"), 20))
    closed = Past(folder, connection, cache)  # it can read nothing any more
    assert same(curves(closed, Ask(("loss", "rate"), 20)).blocks, whole.blocks)
    assert len(curves(closed, Ask(("rate",), 20)).blocks)


def test_damaged_blocks_are_told_each_time_and_never_kept(tmp_path, connection):
    """A pyramid that does not match its checksum is not used, however often it is asked for."""
    path = list_sealed(recorded(tmp_path).path / "metrics")[0]
    unit = open_sealed(path)
    data = bytearray(unit.blocks_path.read_bytes())
    data[unit.sums.blocks.groups[-1].offset + 5] ^= 1
    unit.blocks_path.write_bytes(data)
    cache, checked = BlockCache(), Checked()
    for _ in range(2):
        blocks, problems = read_blocks(
            [unit], Selection(["loss"], level=64), connection=connection, checked=checked, cache=cache
        )
        assert int(blocks.count.sum()) == STEPS // 2
        assert ["checksum" in problem.what for problem in problems] == [True]
    assert cache.bytes == 0


def test_names_of_intact_and_of_damaged_row_groups_come_once_each(tmp_path, connection, monkeypatch):
    """What is kept of the intact part of a pyramid is not read again with the part that is damaged."""
    monkeypatch.setattr(parquet, "_BLOCKS_PER_GROUP", 2048)
    folder, length = make_run(tmp_path), 100_000
    for number in (0, 1):
        value = np.arange(length, dtype=np.float64)
        points = points_of({"a": value, "b": value, "c": value}, first=number * length)
        seal_points(folder, points, number)
    units = [open_sealed(path) for path in list_sealed(folder.path / "metrics")]
    group = units[0].sums.blocks.groups[-1]
    assert group.first_name > "a"
    data = bytearray(units[0].blocks_path.read_bytes())
    data[group.offset + 5] ^= 1
    units[0].blocks_path.write_bytes(data)
    cache = BlockCache()
    read_blocks(units[:1], Selection(["a"], level=64), connection=connection, cache=cache)
    assert cache.bytes
    for _ in range(2):
        blocks, problems = read_blocks(units, Selection(["a", "c"], level=64), connection=connection, cache=cache)
        assert problems
        assert int(blocks.count.sum()) == 4 * length


def test_a_file_that_changed_is_compared_and_read_again(tmp_path, connection):
    """What is kept belongs to one file: another one under its name is not taken for it."""
    unit = open_sealed(list_sealed(recorded(tmp_path).path / "metrics")[0])
    cache, checked = BlockCache(), Checked()
    before, problems = read_blocks(
        [unit], Selection(["loss"], level=64), connection=connection, checked=checked, cache=cache
    )
    assert not problems
    unit.blocks_path.write_bytes(b"nothing of what was there")
    after, problems = read_blocks(
        [unit], Selection(["loss"], level=64), connection=connection, checked=checked, cache=cache
    )
    assert problems
    assert int(after.count.sum()) == int(before.count.sum())
