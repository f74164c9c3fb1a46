from __future__ import annotations

import errno
import os
import random
import resource
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.core.ring import NO_STEP
from stepscope.store import parquet, pyramid, sealed
from stepscope.store.checksum import Checked
from stepscope.store.parquet import Selection
from stepscope.store.points import NO_NS, Points, in_order, with_sorted_names
from stepscope.store.pyramid import COLUMNS
from tests.store.recorded import list_sealed

STEM = "node-0-1-9"
ERRNOS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT)
FIELDS = ("name", "rank", "attempt", "seq", "step", "time", "value", "ns")

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NAME = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(["loss", "x" * 400, "x" * 401])
BITS = st.integers(0, 2**64 - 1) | st.sampled_from([0x7FF8 << 48, 0xFFF8 << 48, 0x7FF0 << 48, 0x7FF0_0000_0000_0001])
ROW = st.tuples(NAME, INT32, INT32, INT64, INT64 | st.just(NO_STEP), INT64, BITS, st.just(NO_NS) | INT64)


def points_of(rows) -> Points:
    """Make points of (name, rank, attempt, seq, step, time, bits of the value, ns)."""
    names, *columns = zip(*rows, strict=True) if rows else [()] * 8
    table = sorted(set(names))
    kinds = (np.int32, np.int32, np.int64, np.int64, np.int64, np.uint64, np.int64)
    arrays = [np.array(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)]
    value = np.where(arrays[6] == NO_NS, arrays[5].view(np.float64), arrays[6] / 1e9)
    code = np.array([table.index(name) for name in names], dtype=np.int32)
    return Points(table, code, *arrays[:5], value, arrays[6])


def steady(series=3, length=3000, seed=0, start=0) -> Points:
    """Make series of noise with a NaN and an infinity, and one short series."""
    noise = np.random.default_rng(seed)
    step = np.arange(start, start + length, dtype=np.int64)
    parts = []
    for index in range(series):
        value = noise.normal(size=length).round(2)
        value[[7, 70]] = np.nan, np.inf
        zeros = np.zeros(length, dtype=np.int32)
        none = np.full(length, NO_NS, dtype=np.int64)
        parts.append(Points([f"metric/{index}"], zeros, zeros + index % 2, zeros, step, step, step * 10, value, none))
    parts.append(Points(["short"], *(getattr(parts[0].select(slice(20)), field) for field in FIELDS)))
    return Points.concat(parts)


def same(left: Points, right: Points) -> bool:
    """Compare two readings bit by bit."""
    left, right = (in_order(with_sorted_names(points)) for points in (left, right))
    return left.names == right.names and all(
        getattr(left, field).tobytes() == getattr(right, field).tobytes() for field in FIELDS
    )


def part_of(found: Points, whole: Points) -> bool:
    """Return whether every point found is one of the whole, bit by bit; seq must be unique in each name."""
    whole = in_order(with_sorted_names(whole))
    place = np.array([whole.names.index(name) for name in found.names], dtype=np.int64)
    key, keys = place[found.name] * 2**32 + found.seq, whole.name * np.int64(2**32) + whole.seq
    at = np.minimum(np.searchsorted(keys, key), len(whole) - 1)
    return all(getattr(whole, field)[at].tobytes() == getattr(found, field).tobytes() for field in FIELDS[1:])


@pytest.fixture(scope="module")
def connection():
    """One connection to read with, for making one is what costs."""
    with parquet.connect() as made:
        yield made


@pytest.fixture
def small_groups(monkeypatch):
    """Row groups as small as DuckDB makes them, so that a small file has several."""
    monkeypatch.setattr(parquet, "_POINTS_PER_GROUP", 2048)
    monkeypatch.setattr(parquet, "_BLOCKS_PER_GROUP", 2048)


def write(directory: Path, points: Points, stem: str = STEM, **more) -> Path:
    return sealed.write_sealed(directory, stem, points, last_seq={"0": 9}, **more)


def read(path: Path, connection, **filters):
    units = [sealed.open_sealed(path, connection=connection)]
    return sealed.read_points(units, Selection(**filters), connection=connection, checked=Checked())


@settings(max_examples=60)
@given(st.lists(ROW, max_size=30))
@pytest.mark.slow
def test_points_come_back_bit_by_bit(connection, rows):
    """Every float, integer, name and duplicate survives sealing."""
    points = points_of(rows)
    with tempfile.TemporaryDirectory() as directory:
        found, problems = read(write(Path(directory), points), connection)
    assert same(found, points)
    assert problems == []


@pytest.mark.parametrize("pattern", [[0x7FF8 << 48, 0xFFF8 << 48, 0x7FF0_0000_0000_0001, 0, 1 << 63, 0x7FF0 << 48]])
def test_kinds_of_nan_stay_apart_in_long_series(tmp_path, connection, pattern):
    """Few distinct values would share a dictionary, in which all NaN are one: they must not."""
    rows = [("a", 0, 0, seq, seq, seq, pattern[seq % len(pattern)], NO_NS) for seq in range(5000)]
    found, _ = read(write(tmp_path, points_of(rows)), connection)
    assert same(found, points_of(rows))


def test_a_unit_without_points_is_a_unit(tmp_path, connection):
    """What holds only events still tells its last sequence."""
    path = write(tmp_path, Points.empty())
    unit = sealed.open_sealed(path)
    assert (unit.names, unit.last_seq, unit.first_time) == ({}, {"0": 9}, 0)
    assert len(read(path, connection)[0]) == 0
    assert len(sealed.read_blocks([unit], Selection(level=64), connection=connection)[0]) == 0


def test_facts_are_known_without_the_parquet(tmp_path):
    """Names, counts, times, problems and what the writer added come from the .sum alone."""
    path = write(tmp_path, steady(), problems=["a torn block"], info={"records": 3})
    path.write_bytes(b"")
    unit = sealed.open_sealed(path)
    assert unit.names == {"metric/0": 3000, "metric/1": 3000, "metric/2": 3000, "short": 20}
    assert (unit.first_time, unit.last_time, unit.info) == (0, 29990, {"records": 3})
    assert [problem.what for problem in unit.problems] == ["a torn block"]


def test_files_are_private_and_named_by_the_stem(tmp_path):
    """Three files, readable by their owner only."""
    path = write(tmp_path, steady())
    assert sorted(os.listdir(tmp_path)) == [f"{STEM}.blocks.parquet", f"{STEM}.parquet", f"{STEM}.sum"]
    assert {entry.stat().st_mode & 0o777 for entry in tmp_path.iterdir()} == {0o600}
    assert list_sealed(tmp_path) == [path]
    sealed.remove_sealed(path)
    assert list(tmp_path.iterdir()) == []


def test_row_groups_hold_at_most_100000_points(tmp_path):
    """The size of a row group bounds what one flipped bit can cost."""
    path = write(tmp_path, steady(2, 120_000))
    groups = sealed.open_sealed(path).sums.points.groups
    assert len(groups) > 2
    assert max(group.rows for group in groups) <= 100_000


def test_filters_leave_what_was_asked_for(tmp_path, connection):
    """Names, ranks, attempts and steps are each obeyed."""
    path = write(tmp_path, steady())
    assert set(read(path, connection, names=["metric/1", "none"])[0].names) == {"metric/1"}
    assert set(read(path, connection, ranks=[1])[0].rank.tolist()) == {1}
    assert len(read(path, connection, attempts=[5])[0]) == 0
    assert len(read(path, connection, ranks=[])[0]) == 0
    found = read(path, connection, names=["metric/0", "metric/2"], step_range=(10, 19))[0]
    assert sorted(found.step.tolist()) == sorted([*range(10, 20)] * 2)


def test_many_units_are_read_as_one(tmp_path, connection):
    """Series continue over units in the order of their sequence, whatever the order of the list."""
    parts = [steady(seed=start, start=start) for start in (0, 3000, 6000)]
    paths = [write(tmp_path, part, f"node-0-{index}-{index}") for index, part in enumerate(parts)]
    units = [sealed.open_sealed(path) for path in reversed(paths)]
    found, problems = sealed.read_points(units, connection=connection)
    assert same(found, Points.concat(parts))
    assert found.seq[found.name == found.names.index("metric/0")].tolist() == list(range(9000))
    assert problems == []


def test_paths_that_look_like_patterns_are_paths(tmp_path, connection):
    """Brackets, stars, quotes and key=value in a folder's name mean nothing."""
    directory = tmp_path / "we[i]rd *?" / "name=it's"
    directory.mkdir(parents=True)
    points = steady()
    assert same(read(write(directory, points), connection)[0], points)


def test_blocks_hold_every_point_once(tmp_path, connection):
    """Blocks of all units equal those of the points, short series included."""
    parts = [steady(seed=start, start=start) for start in (0, 3000)]
    units = [sealed.open_sealed(write(tmp_path, p, f"node-0-{i}-{i}")) for i, p in enumerate(parts)]
    for level in pyramid.LEVELS:
        blocks, problems = sealed.read_blocks(units, Selection(level=level), connection=connection)
        assert_blocks(blocks, parts, level)
        assert problems == []


def test_blocks_obey_filters(tmp_path, connection):
    """Names, ranks and a range of steps choose blocks."""
    units = [sealed.open_sealed(write(tmp_path, steady()))]
    blocks, _ = sealed.read_blocks(units, Selection(["metric/1", "short"], level=64), connection=connection)
    assert [blocks.names[code] for code in np.unique(blocks.name)] == ["metric/1", "short"]
    blocks, _ = sealed.read_blocks(units, Selection(ranks=[1], step_range=(64, 128), level=64), connection=connection)
    assert blocks.first_step.tolist() == [64, 128]


def assert_blocks(blocks, parts, level):
    """Compare blocks with those computed from the points of each unit."""
    built = [pyramid.build(in_order(with_sorted_names(part)), level) for part in parts]
    expected = pyramid.Blocks.concat(built)
    order = np.lexsort((expected.first_seq, expected.rank, expected.name))
    assert blocks.names == expected.names
    for field in COLUMNS:
        left, right = getattr(blocks, field), getattr(expected, field)[order]
        assert np.array_equal(left, right, equal_nan=left.dtype.kind == "f"), field


def test_damaged_pyramids_are_replaced_by_the_points(tmp_path, connection):
    """A flipped, cut or missing pyramid costs time, not blocks."""
    points = steady()
    path = write(tmp_path, points)
    unit = sealed.open_sealed(path)
    whole = unit.blocks_path.read_bytes()
    for data in (whole[:500] + b"?" + whole[501:], whole[:600], None):
        unit.blocks_path.unlink() if data is None else unit.blocks_path.write_bytes(data)
        blocks, problems = sealed.read_blocks([unit], Selection(level=64), connection=connection, checked=Checked())
        assert_blocks(blocks, [points], 64)
        assert problems


def test_a_cut_costs_only_what_it_cut(tmp_path, connection, small_groups):
    """Cut anywhere, the row groups before the cut are read whole; nothing raises, nothing is altered."""
    rows = [("a" if seq < 3000 else "b", 0, 0, seq, seq, 10 * seq, 0, NO_NS) for seq in range(4096)]
    path = write(tmp_path, points_of(rows))
    unit, whole = sealed.open_sealed(path), path.read_bytes()
    ends = [group.offset + group.length for group in unit.sums.points.groups]
    kept = np.cumsum([0, *(group.rows for group in unit.sums.points.groups)])
    edges = {end + offset for end in (0, *ends, len(whole)) for offset in range(-20, 20)}
    for length in sorted(edges & {*range(len(whole))} | {*range(0, len(whole), 23)}):
        path.write_bytes(whole[:length])
        found, problems = sealed.read_points([unit], connection=connection, checked=Checked())
        assert found.seq.tolist() == list(range(kept[sum(end <= length for end in ends)]))
        assert problems


@pytest.mark.slow
@pytest.mark.parametrize(("part", "flips"), [(".parquet", 200), (".blocks.parquet", 60), (".sum", 120)])
def test_a_flip_costs_at_most_one_row_group(tmp_path, connection, small_groups, part, flips):
    """Any flipped byte: no exception, no wrong value, at most one row group lost, and said so."""
    points = steady(3, 1500)
    path = write(tmp_path, points)
    target = path.with_name(f"{STEM}{part}")
    whole, dice = target.read_bytes(), random.Random(part)
    for _ in range(flips):
        at = dice.randrange(len(whole))
        target.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << dice.randrange(8)]) + whole[at + 1 :])
        found, problems = read(path, connection)
        assert part_of(found, points)
        assert len(points) - len(found) == sum(problem.rows for problem in problems) <= 2048
        assert problems or part == ".blocks.parquet"


@pytest.mark.slow
@pytest.mark.parametrize(("part", "flips"), [(".parquet", 40), (".blocks.parquet", 100), (".sum", 40)])
def test_blocks_survive_any_flip(tmp_path, connection, part, flips):
    """With one byte flipped anywhere, every block is right or what is missing was said."""
    points = steady()
    path = write(tmp_path, points)
    target = path.with_name(f"{STEM}{part}")
    whole, dice = target.read_bytes(), random.Random(part)
    for _ in range(flips):
        at = dice.randrange(len(whole))
        target.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << dice.randrange(8)]) + whole[at + 1 :])
        unit = sealed.open_sealed(path, connection=connection)
        blocks, problems = sealed.read_blocks([unit], Selection(level=64), connection=connection, checked=Checked())
        if part == ".parquet" and any(problem.rows for problem in problems):
            assert blocks.count.sum() == 9000  # the short series has no blocks, and its points are lost
        else:
            assert_blocks(blocks, [points], 64)


def test_garbage_without_a_sum_is_a_problem(tmp_path, connection):
    """A file that nobody vouches for and DuckDB refuses is told, beside the units that are whole."""
    points = steady()
    whole = sealed.open_sealed(write(tmp_path, points))
    garbage = tmp_path / "node-0-2-2.parquet"
    garbage.write_bytes(b"PAR1 is not enough PAR1")
    unit = sealed.open_sealed(garbage, connection=connection)
    found, _ = sealed.read_points([unit, whole], connection=connection)
    assert same(found, points)
    assert len(unit.problems) == 2


def test_what_duckdb_refuses_is_left_out(tmp_path, connection):
    """Of several units, the one that DuckDB cannot read costs only itself."""
    points = steady()
    good = sealed.open_sealed(write(tmp_path, points))
    path = write(tmp_path, steady(seed=1), "node-0-2-2")
    path.with_suffix(".sum").unlink()
    bad = sealed.open_sealed(path, connection=connection)
    path.write_bytes(path.read_bytes()[:300])
    found, problems = sealed.read_points([bad, good], connection=connection)
    assert same(found, points)
    assert any("DuckDB cannot read it" in problem.what for problem in problems)


def test_a_missing_sum_is_told_and_the_file_read(tmp_path, connection):
    """Without a .sum the facts come from the file itself, marked as not compared."""
    points = steady()
    path = write(tmp_path, points)
    path.with_suffix(".sum").unlink()
    unit = sealed.open_sealed(path, connection=connection)
    assert unit.names["short"] == 20
    assert unit.last_seq == {"0": 2999, "1": 2999}
    found, problems = sealed.read_points([unit], connection=connection)
    assert same(found, points)
    assert "without comparing" in problems[0].what


def test_a_unit_that_is_gone_is_not_found(tmp_path, connection):
    """Whoever meets a removed unit lists again."""
    path = write(tmp_path, steady())
    unit = sealed.open_sealed(path)
    sealed.remove_sealed(path)
    with pytest.raises(FileNotFoundError):
        sealed.open_sealed(path)
    with pytest.raises(FileNotFoundError):
        sealed.read_points([unit], connection=connection)
    with pytest.raises(FileNotFoundError):
        sealed.read_blocks([unit], Selection(level=64), connection=connection)


class FailingDisk(sealed.Disk):
    """Fails the n-th call, and all after it if the fault stays; n of 0 only counts."""

    def __init__(self, nth: int = 0, number: int = 0, *, stays: bool = False) -> None:
        self.nth, self.number, self.stays, self.calls = nth, number, stays, 0

    def _count(self) -> None:
        self.calls += 1
        if self.nth and (self.calls == self.nth or (self.stays and self.calls > self.nth)):
            raise OSError(self.number, os.strerror(self.number))

    def open(self, path, flags):
        self._count()
        return super().open(path, flags)

    def write(self, descriptor, data):
        self._count()
        return super().write(descriptor, data[:1000])

    def copy(self, connection, query):
        self._count()
        super().copy(connection, query)

    def fsync(self, descriptor):
        self._count()
        super().fsync(descriptor)

    def close(self, descriptor):
        super().close(descriptor)
        self._count()

    def rename(self, source, target):
        self._count()
        super().rename(source, target)

    def unlink(self, path):
        self._count()
        super().unlink(path)


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """How many system calls sealing takes."""
    disk = FailingDisk()
    write(tmp_path_factory.mktemp("calls"), points_of([("a", 0, 0, 0, 0, 0, 0, NO_NS)]), disk=disk)
    return disk.calls


@pytest.mark.slow
@pytest.mark.parametrize("number", ERRNOS)
def test_a_failed_call_leaves_nothing_behind(tmp_path, calls, number):
    """Whichever call fails, the caller is told, nothing is visible, and the next try succeeds."""
    points = points_of([("a", 0, 0, 0, 0, 0, 0, NO_NS)])
    for nth in range(1, calls + 1):
        with pytest.raises(OSError) as caught:  # noqa: PT011 (the errno is compared below)
            write(tmp_path, points, disk=FailingDisk(nth, number))
        assert caught.value.errno == number
        assert list(tmp_path.iterdir()) == []
    write(tmp_path, points)


def test_a_disk_that_stays_broken_shows_no_half_unit(tmp_path, connection, calls):
    """If not even cleaning up works, readers see nothing or the whole unit, and the next writer cleans up."""
    points = points_of([("a", 0, 0, 0, 0, 0, 0, NO_NS)])
    for nth in range(1, calls + 1):
        with pytest.raises(OSError, match="Input/output"):
            write(tmp_path, points, disk=FailingDisk(nth, errno.EIO, stays=True))
        for path in list_sealed(tmp_path):
            assert same(read(path, connection)[0], points)
            sealed.remove_sealed(path)
    write(tmp_path, points)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_write_that_duckdb_cannot_finish_is_an_os_error(tmp_path):
    """A limit that strikes inside DuckDB reaches the caller as the system's own error."""
    noise = np.random.default_rng(0).integers(0, 2**62, 20_000)
    rows = [("a", 0, 0, seq, seq, seq, int(bits), NO_NS) for seq, bits in enumerate(noise)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(OSError) as caught:  # noqa: PT011 (the errno is compared below)
            write(tmp_path, points_of(rows))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_the_same_writer_are_removed_and_others_stay(tmp_path):
    """A writer cleans up after its own host and attempt; another host may still be writing."""
    mine = [".tmp-node-0-1-5.parquet", ".tmp-node-0-1-5.sum", "node-0-1-5.sum", "node-0-1-5.blocks.parquet"]
    others = [".tmp-node-1-1-5.parquet", ".tmp-node-0-0-1-5.parquet", "node-0-1-5.json", "other-0-1-5.sum"]
    for name in mine + others:
        (tmp_path / name).touch()
    write(tmp_path, steady())
    left = set(os.listdir(tmp_path))
    assert not left & set(mine)
    assert left >= set(others)


def test_a_unit_is_never_overwritten(tmp_path, connection):
    """Sealing the same stem again is refused, and the unit stays as it was."""
    points = steady()
    path = write(tmp_path, points)
    with pytest.raises(FileExistsError):
        write(tmp_path, steady(seed=1))
    assert same(read(path, connection)[0], points)


@pytest.mark.parametrize("stem", ["../a-0-1-2", ".a-0-1-2", "a-0-1"])
def test_a_stem_is_a_plain_name(tmp_path, stem):
    """A stem cannot lead out of the folder."""
    with pytest.raises(ValueError, match="cannot seal"):
        write(tmp_path, Points.empty(), stem)


def test_a_full_temporary_folder_is_a_problem_not_a_crash(tmp_path, connection, monkeypatch):
    """If no repaired copy can be made, the unit is left out and that is said."""
    path = write(tmp_path, steady())
    unit = sealed.open_sealed(path)
    os.truncate(path, 1000)

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sealed.checksum, "repair", refuse)
    found, problems = sealed.read_points([unit], connection=connection, checked=Checked())
    assert len(found) == 0
    assert "No space left" in problems[-1].what


def test_the_writer_reaches_no_other_file(tmp_path):
    """The connection that writes cannot read or write anywhere else."""
    with parquet.connect(writable=[tmp_path / "a.parquet"]) as locked:
        for query in ("SELECT * FROM read_text('/etc/passwd')", f"COPY (SELECT 1) TO '{tmp_path}/b.csv'"):
            with pytest.raises(duckdb.PermissionException):
                locked.execute(query)


def test_a_connection_draws_no_progress_bar(connection):
    """DuckDB draws one on stdout where a query takes more than two seconds: among what a command prints."""
    assert connection.execute("SELECT current_setting('enable_progress_bar')").fetchall() == [(False,)]
