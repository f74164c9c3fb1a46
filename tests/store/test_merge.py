from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.store import merge, parquet, sealed
from stepscope.store.checksum import Checked
from stepscope.store.footer import FooterError
from stepscope.store.parquet import Selection
from stepscope.store.points import NO_NS, Points
from stepscope.store.pyramid import COLUMNS, LEVELS
from tests.store.test_sealed import ROW, points_of, same


@functools.cache
def reading() -> duckdb.DuckDBPyConnection:
    """One connection to read with, for making one is what costs."""
    return parquet.connect()


def everything(path: Path):
    """Read a unit as anybody would: points, blocks of both levels, and what its .sum says."""
    unit = sealed.open_sealed(path)
    points, problems = sealed.read_points([unit], connection=reading(), checked=Checked())
    blocks = [
        sealed.read_blocks([unit], Selection(level=level), connection=reading(), checked=Checked())[0]
        for level in LEVELS
    ]
    columns = [[getattr(part, column).tobytes() for column in COLUMNS] for part in blocks]
    assert problems == []
    return points, columns, unit.sums.names, (unit.first_time, unit.last_time)


def assert_like_sealed_at_once(merged: Path, parts: list[Points], directory: Path) -> None:
    """Compare a merged unit with one that was sealed from all the points together."""
    whole = sealed.write_sealed(directory, "node-0-0-99", Points.concat(parts), last_seq={})
    found, expected = everything(merged), everything(whole)
    assert same(found[0], expected[0])
    assert found[1:] == expected[1:]


@settings(max_examples=15)
@given(st.lists(st.lists(ROW, max_size=12), min_size=2, max_size=5))
@pytest.mark.slow
def test_merging_changes_nothing(rows):
    """Any points in any units, merged, are bit by bit what sealing them together gives."""
    with tempfile.TemporaryDirectory() as place:
        parts = [points_of(part) for part in rows]
        paths = [
            sealed.write_sealed(Path(place), f"node-0-{number}-{number}", part, last_seq={})
            for number, part in enumerate(parts)
        ]
        assert_like_sealed_at_once(merge.merge(Path(place), "node-0-0-9", paths), parts, Path(place))


@settings(max_examples=12)
@given(
    st.integers(4000, 20_000),
    st.lists(st.integers(0, 20_000), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 20_000)), min_size=1, max_size=4),
)
@pytest.mark.slow
def test_slices_divide_no_block(length, cuts, series):
    """However series are spread over units, a merge in slices gives the points and blocks of sealing them together."""
    ends = [*sorted(min(cut, length) for cut in cuts), length]
    parts = [long_part(*zip(*series, strict=True), span) for span in zip([0, *ends[:-1]], ends, strict=True)]
    with tempfile.TemporaryDirectory() as place:
        paths = [
            sealed.write_sealed(Path(place), f"node-0-{number}-{number}", part, last_seq={})
            for number, part in enumerate(parts)
        ]
        merged = merge.merge(Path(place), "node-0-0-9", paths, slice_points=4096)
        assert_like_sealed_at_once(merged, parts, Path(place))


def long_part(names, lengths, span) -> Points:
    """Make the points of one unit: of each series, those of its steps that lie in the span."""
    parts = []
    for index, (name, length) in enumerate(zip(names, lengths, strict=True)):
        step = np.arange(span[0], min(length, span[1]), dtype=np.int64)
        value = np.random.default_rng(index).normal(size=30_000)[step]
        value[step % 1000 == 7] = np.nan
        ns = np.where(step % 2 == 0, step * 1001, NO_NS) if index % 2 else np.full(len(step), NO_NS)
        value = np.where(ns == NO_NS, value, ns / 1e9)
        keys = [np.full(len(step), code, np.int32) for code in (0, index, 0)]
        parts.append(Points([name], *keys, step, step * 2, step * 10, value, ns))
    return Points.concat(parts)


@pytest.mark.parametrize("bits", [[0x7FF8 << 48, 0xFFF8 << 48], [0x7FF0_0000_0000_0001, 0x7FF8 << 48, 1 << 63]])
def test_kinds_of_nan_stay_apart(tmp_path, bits):
    """Every NaN keeps its bits through a merge, whatever dictionary it could share."""
    parts = [
        points_of(
            [("a", 0, 0, at, at, at, bits[(at + unit) % len(bits)], NO_NS) for at in range(unit * 99, unit * 99 + 99)]
        )
        for unit in range(3)
    ]
    paths = [
        sealed.write_sealed(tmp_path, f"node-0-{number}-{number}", part, last_seq={})
        for number, part in enumerate(parts)
    ]
    assert_like_sealed_at_once(merge.merge(tmp_path, "node-0-0-2", paths), parts, tmp_path)


def test_files_of_other_columns_are_not_joined(tmp_path):
    """Row groups can share a footer only if they have the same columns."""
    for name, query in (("a", "SELECT 1 AS x"), ("b", "SELECT 'b' AS x")):
        duckdb.execute(f"COPY ({query}) TO '{tmp_path}/{name}' (FORMAT parquet)")
    (tmp_path / "both").touch()
    with merge.joining(tmp_path / "both", sealed.Disk()) as joined:
        joined.append(tmp_path / "a")
        with pytest.raises(FooterError, match="columns differ"):
            joined.append(tmp_path / "b")
    assert duckdb.execute(f"SELECT * FROM read_parquet('{tmp_path}/both')").fetchall() == [(1,)]
