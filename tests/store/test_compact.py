from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from stepscope.store import compact, seal, sealed
from stepscope.store.compact import MergeLimits, plan
from stepscope.store.layout import RunFolder, Writer
from stepscope.store.points import NO_NS, Points
from stepscope.store.reader import Past
from stepscope.store.snapshot import take_snapshot
from tests.store.test_merge import assert_like_sealed_at_once, everything
from tests.store.test_sealed import FailingDisk, points_of, same, steady

if TYPE_CHECKING:
    from collections.abc import Iterable

WRITER = Writer("node", 0)
MINUTE = 60.0


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    """An empty run."""
    made = RunFolder(tmp_path / "run")
    made.make()
    made.describe({"id": "run", "format": 1})
    return made


def add(folder: RunFolder, points: Points, number: int, **more) -> Path:
    """Seal points as the unit of one tail."""
    stem = folder.unit_stem(WRITER, number, number)
    facts = {"last_seq": {"0": number, "1": 5}, **more}
    return sealed.write_sealed(folder.path / "metrics", stem, points, **facts)


@functools.cache
def template() -> tuple[tempfile.TemporaryDirectory[str], list[Points]]:
    """Seal, once for all tests, units that follow each other; a test takes copies."""
    place = tempfile.TemporaryDirectory()
    run = RunFolder(Path(place.name))
    run.make()
    parts = [steady(seed=number, start=number * 3000) for number in range(17)]
    for number, part in enumerate(parts):
        add(run, part, number)
    return place, parts


def fill(folder: RunFolder, numbers: Iterable[int] = range(8)) -> list[Points]:
    """Put units of these numbers into a run and return their points."""
    place, parts = template()
    for number in numbers:
        for path in Path(place.name, "metrics").glob(f"node-0-{number}-{number}.*"):
            shutil.copy2(path, folder.path / "metrics" / path.name)
    return [parts[number] for number in numbers]


def visible(folder: RunFolder) -> list[str]:
    return [f"{unit.first}-{unit.last}" for unit in folder.units()]


def test_eight_units_become_one(folder):
    """Units of one size are merged when there are eight of them, and not before."""
    parts = fill(folder, range(7))
    assert compact.compact(folder, WRITER) == []
    parts += fill(folder, [7])
    made = compact.compact(folder, WRITER)
    assert [path.name for path in made] == ["node-0-0-7.parquet"]
    assert visible(folder) == ["0-7"]
    assert_like_sealed_at_once(made[0], parts, folder.path)


def test_facts_of_the_units_are_joined(folder):
    """The highest sequences, the number of first units, and the problems, of many only the first hundred."""
    for number in range(8):
        add(folder, steady(), number, problems=[f"tail {number}: {index}" for index in range(20)])
    (path,) = compact.compact(folder, WRITER)
    unit = sealed.open_sealed(path)
    assert unit.last_seq == {"0": 7, "1": 5}
    assert unit.info == {"merged": 8}
    assert unit.problems[0].what == "tail 0: 0"
    assert [problem.what for problem in unit.problems[100:]] == ["and 60 more problems"]


def test_readers_see_no_difference(folder):
    """Names, points, summaries and downsampled series are the same before and after; so are those of an old listing."""
    parts = fill(folder)
    before, listed = seen(folder), take_snapshot(folder)
    assert compact.compact(folder, WRITER)
    assert seen(folder) == before
    points, problems = sealed.read_points(listed.units)
    assert same(points, Points.concat(parts))
    assert problems == []


def seen(folder: RunFolder) -> list[object]:
    """Return what a reader is told of a run, in a form that can be compared."""
    past = Past(folder)
    few = past.series("metric/0", points=500)
    arrays = [few.step, few.value, few.buckets.count, few.buckets.min, past.points().value, past.points().seq]
    figures = [past.summary(name, window) for name in past.names() for window in (None, 500)]
    overview = past.series("metric/1", points=20).buckets
    extremes = [overview.count.sum(), overview.nonfinite.sum(), overview.min.min(), overview.max.max()]
    return [past.names(), [array.tobytes() for array in arrays], repr(figures), extremes, past.problems()]


def test_a_reader_that_meets_a_removed_unit_lists_again(folder, monkeypatch):
    """Between a reader's listing and its reading the units may be merged and swept away."""
    parts = fill(folder)
    past = Past(folder)
    first = take_snapshot(folder)
    compact.compact(folder, WRITER)
    swept(folder, 11 * MINUTE)
    snapshots = [first]
    monkeypatch.setattr(
        "stepscope.store.reader.take_snapshot", lambda run: snapshots.pop() if snapshots else take_snapshot(run)
    )
    assert same(past.points(), Points.concat(parts))
    assert snapshots == []


def swept(folder: RunFolder, later: float) -> int:
    """Sweep at a time after the last change, in seconds, and return how many units went."""
    newest = max(path.stat().st_mtime for path in (folder.path / "metrics").iterdir())
    return len(compact.sweep(folder, newest + later))


def test_replaced_units_go_after_ten_minutes(folder):
    """A reader has ten minutes to finish with the units that were merged."""
    fill(folder)
    compact.compact(folder, WRITER)
    assert swept(folder, 9 * MINUTE) == 0
    assert len(list((folder.path / "metrics").iterdir())) == 27
    assert swept(folder, 11 * MINUTE) == 8
    assert len(list((folder.path / "metrics").iterdir())) == 3
    assert visible(folder) == ["0-7"]


def test_compaction_sweeps_its_own_writer(folder):
    """The units that this writer had merged go; those of another node are its own business."""
    fill(folder)
    (path,) = compact.compact(folder, WRITER)
    later = path.stat().st_mtime + 11 * MINUTE
    compact.compact(folder, Writer("other", 0), now=later)
    assert len(list((folder.path / "metrics").iterdir())) == 27
    compact.compact(folder, WRITER, now=later)
    assert len(list((folder.path / "metrics").iterdir())) == 3


def test_units_stay_while_the_merged_one_is_damaged(folder):
    """The first copies are not deleted when the second turns out to be bad."""
    fill(folder)
    (path,) = compact.compact(folder, WRITER)
    flip(path)
    assert swept(folder, 11 * MINUTE) == 0


def flip(path: Path) -> None:
    """Change one byte of the data."""
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def test_a_damaged_unit_is_left_alone(folder):
    """It stays, byte by byte; what lies before it and after it is merged."""
    fill(folder, range(17))
    path = folder.path / "metrics" / "node-0-8-8.parquet"
    flip(path)
    before = path.read_bytes()
    compact.compact(folder, WRITER)
    assert visible(folder) == ["0-7", "8-8", "9-16"]
    assert path.read_bytes() == before


def test_a_unit_without_its_sum_is_left_alone(folder):
    """Nobody vouches for its bytes, so they are not copied as if they were right."""
    fill(folder, range(9))
    (folder.path / "metrics" / "node-0-0-0.sum").unlink()
    compact.compact(folder, WRITER)
    assert visible(folder) == ["0-0", "1-8"]


def test_a_damaged_pyramid_is_made_anew(folder):
    """Blocks come from the points, so a merge also heals them."""
    parts = fill(folder)
    flip(folder.path / "metrics" / "node-0-3-3.blocks.parquet")
    (path,) = compact.compact(folder, WRITER)
    assert_like_sealed_at_once(path, parts, folder.path)


def test_nothing_is_merged_across_a_tail(folder):
    """A merged unit would hide a tail between its units that is not in it."""
    fill(folder, [*range(8), *range(9, 17)])
    folder.tail_file(WRITER, 8).touch()
    compact.compact(folder, WRITER)
    assert visible(folder) == ["0-7", "9-16"]
    assert [tail.first for tail in folder.tails()] == [8]


def test_a_tail_that_is_sealed_or_was_empty_is_no_obstacle(folder):
    """A tail whose unit is there, or a number that no file has, is merged over."""
    fill(folder, range(0, 16, 2))
    folder.tail_file(WRITER, 4).touch()
    compact.compact(folder, WRITER)
    assert visible(folder) == ["0-14"]
    assert folder.tails() == []


def test_a_long_series_out_of_order_is_left_alone(folder):
    """Units whose sequences are mixed cannot be merged in slices; they stay as they are."""
    points = steady(series=1)
    for number in range(8):
        add(folder, points, number)
    assert compact.compact(folder, WRITER, MergeLimits(slice_points=4096)) == []
    assert len(visible(folder)) == 8


def test_units_without_points_are_merged(folder):
    """What only says how far its tail went is merged too."""
    for number in range(8):
        add(folder, Points.empty(), number)
    (path,) = compact.compact(folder, WRITER)
    assert everything(path)[2:] == ({}, (0, 0))
    assert sealed.open_sealed(path).last_seq == {"0": 7, "1": 5}


def small(folder: RunFolder) -> list[Path]:
    """Seal the smallest units that have a pyramid."""
    row = [("a", 0, 0, 64 * number + at, 0, 0, 0, NO_NS) for number in range(8) for at in range(64)]
    return [add(folder, points_of(row[64 * number : 64 * number + 64]), number) for number in range(8)]


def state(folder: RunFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder.path / "metrics").iterdir()}


@pytest.fixture(scope="module")
def calls(tmp_path_factory) -> int:
    """How many system calls a merge of the smallest units takes."""
    run, disk = RunFolder(tmp_path_factory.mktemp("calls")), FailingDisk()
    run.make()
    small(run)
    compact.compact(run, WRITER, disk=disk)
    return disk.calls


@pytest.mark.slow
def test_a_failed_call_leaves_the_units_as_they_were(folder, calls):
    """Whichever system call fails, the caller is told, no file has changed or come, and the next try succeeds."""
    small(folder)
    before, cleaning = state(folder), 0
    for nth in range(1, calls + 1):
        disk = FailingDisk(nth, errno.ENOSPC)
        with contextlib.suppress(OSError):
            compact.compact(folder, WRITER, disk=disk)
            cleaning += 1  # only scratch could not be removed: the merge is good
            remake(folder)
        assert disk.calls >= nth
        assert {name: data for name, data in state(folder).items() if ".tmp" not in name} == before
    assert cleaning <= 4
    assert everything(compact.compact(folder, WRITER)[0])[2] == {"a": (512, 0)}
    assert len(state(folder)) == 27


def remake(folder: RunFolder) -> None:
    """Undo a merge."""
    assert visible(folder) == ["0-7"]
    sealed.remove_sealed(folder.path / "metrics" / "node-0-0-7.parquet")


@pytest.mark.slow
def test_a_disk_that_stays_broken_hides_nothing(folder, calls):
    """If not even cleaning up works, readers see the old units or the new one, whole; and the next merge cleans up."""
    small(folder)
    expected = Past(folder).points()
    for nth in (*range(1, calls - 20, 7), *range(calls - 20, calls + 1)):
        with contextlib.suppress(OSError):
            compact.compact(folder, WRITER, disk=FailingDisk(nth, errno.EIO, stays=True))
        assert same(Past(folder).points(), expected)
        if visible(folder) == ["0-7"]:
            remake(folder)
    compact.compact(folder, WRITER)
    assert len(state(folder)) == 27


def test_leftovers_of_an_interrupted_merge_are_removed(folder):
    """What a killed merge has left goes with the next file that is written."""
    small(folder)
    for word in ("", ".piece", ".64", ".4096"):
        (folder.path / "metrics" / f".tmp-node-0-0-7{word}.parquet").touch()
    compact.compact(folder, WRITER)
    assert not [name for name in os.listdir(folder.path / "metrics") if name.startswith(".")]


class ForgetfulDisk(sealed.Disk):
    """Lets DuckDB write all rows but one."""

    def copy(self, connection, query):
        super().copy(connection, query.replace("FROM p)", "FROM p LIMIT 511)"))


def test_what_does_not_read_back_is_not_made_visible(folder):
    """The units will be deleted, so the merged one is read once before it takes their place."""
    small(folder)
    before = state(folder)
    with pytest.raises(OSError, match="does not read"):
        compact.compact(folder, WRITER, disk=ForgetfulDisk())
    assert state(folder) == before


def test_a_failed_merge_does_not_fail_the_sealing(folder, monkeypatch, capsys):
    """The tails are sealed, so the watcher must not try again; what went wrong is said."""
    small(folder)
    monkeypatch.setattr(seal, "compact", lambda *_: compact.compact(folder, WRITER, disk=FailingDisk(1, errno.ENOSPC)))
    for call in ("nice", "umask"):
        monkeypatch.setattr(seal.os, call, lambda value: value)
    assert seal.main([str(folder.path), WRITER.node, str(WRITER.attempt), "9"]) == 0
    assert "cannot merge sealed files" in capsys.readouterr().err


def grown(sizes, share=200, limits=MergeLimits()) -> tuple[float, int, int]:  # noqa: B008 (immutable)
    """Seal units of these sizes one by one; return how often a point is rewritten, the most often, the most units."""
    units: list[tuple[int, int]] = []
    cost = most = 0
    for size in sizes:
        units.append((size, 0))
        while groups := plan([[points for points, _ in units]], limits, share):
            for group in reversed(groups):
                parts = units[group.first : group.last + 1]
                points = sum(points for points, _ in parts)
                cost += points
                units[group.first : group.last + 1] = [(points, 1 + max(times for _, times in parts))]
        most = max(most, len(units))
    return cost / sum(sizes), max(times for _, times in units), most


DICE = random.Random(4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes",
    [
        [10] * 2000,
        [92_000] * 3000,
        [DICE.randint(1, 400_000) for _ in range(1000)],
        [DICE.randint(1, 8) ** 6 for _ in range(1000)],
        [10, 300_000] * 700,
        [5_000_000, 10] * 300,
        [10] * 300 + [300_000] * 100 + [10] * 300,
    ],
)
def test_a_run_has_few_files_and_rewrites_little(sizes):
    """Whatever sizes come, at most 200 units stay, and a point is rewritten two or three times, at most five."""
    average, at_most, units = grown(sizes)
    assert units <= 200
    assert average < 3
    assert at_most <= 5


def test_a_writer_beside_many_others_keeps_sixteen():
    """However many units the others have, the price stays bounded."""
    share, dice = MergeLimits().share(10_000), random.Random(4)
    average, _, units = grown([dice.randint(1000, 100_000) for _ in range(500)], share)
    assert units <= share == 16
    assert average < 6


def test_units_do_not_outgrow_the_largest_size():
    """Eight million points are one unit at most, until that would make too many units."""
    groups = plan([[1 << 20] * 40], MergeLimits(), 200)
    assert [group.points for group in groups] == [8 << 20] * 5
    assert MergeLimits().cap(800_000_000, 200) == 10_000_000


@pytest.mark.slow
def test_two_thousand_tiny_units_become_few(folder):
    """A backlog is merged in one go, each point at most twice."""
    paths = [add(folder, points_of([("a", 0, 0, 0, 0, 0, 0, NO_NS)] * 10), 0)]
    for number in range(1, 2000):
        for part in (".parquet", ".sum", ".blocks.parquet"):
            name = f"node-0-0-0{part}"
            os.link(paths[0].with_name(name), paths[0].with_name(name.replace("0-0-0", f"0-{number}-{number}")))
    made = compact.compact(folder, WRITER)
    assert len(folder.units()) <= 8
    assert sum(sealed.open_sealed(unit.path).names["a"] for unit in folder.units()) == 20_000
    assert sum(sealed.open_sealed(path).names["a"] for path in made) <= 40_000


MEASURE = """
import sys
from pathlib import Path
from stepscope.store.compact import compact
from stepscope.store.layout import RunFolder, Writer
made = compact(RunFolder(Path(sys.argv[1])), Writer("node", 0))
status = Path("/proc/self/status").read_text()
print(len(made), status.partition("VmHWM:")[2].split()[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("series", [1, 50])
def test_merging_millions_of_points_takes_little_memory(folder, series):
    """The process that merges stays below 200 MiB, of one series as of many."""
    for number in range(8):
        add(folder, millions(series, 375_000 // series, number), number)
    command = [sys.executable, "-c", MEASURE, str(folder.path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(sealed.__file__).parents[2])}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    made, kibibytes = map(int, ended.stdout.split())
    assert made == 1
    assert kibibytes < 200 * 1024


def millions(series: int, length: int, number: int) -> Points:
    """Make noise of so many series, the part of one unit."""
    name = np.repeat(np.arange(series, dtype=np.int32), length)
    step = np.tile(np.arange(length, dtype=np.int64) + number * length, series)
    zeros, value = np.zeros(len(name), np.int32), np.random.default_rng(number).normal(size=len(name))
    names = [f"metric/{index:02}" for index in range(series)]
    return Points(names, name, zeros, zeros, step, step, step * 1000, value, np.full(len(name), NO_NS))
