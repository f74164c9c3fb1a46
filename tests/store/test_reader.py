from __future__ import annotations

import math
import os
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.ring import NO_STEP
from stepscope.store import reader as reader_module
from stepscope.store.layout import Writer
from stepscope.store.points import Points
from stepscope.store.reader import Past
from stepscope.store.seal import seal
from stepscope.store.sealed import write_sealed
from tests.store.recorded import PAIR, Recorded, make_folder, values_of
from tests.store.test_series import check_against_raw


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run of 1 000 steps, half of it sealed, half in the tail, with a spike and a NaN; not to be changed."""
    recorded = Recorded(tmp_path_factory.mktemp("run"))
    for number in range(1000):
        loss = {100: math.nan, 200: 1e6, 700: -1e6}.get(number, 1 / (number + 1))
        recorded.run.log({"loss": loss, "learning_rate": 0.1}, step=number)
        if number == 499:
            recorded.drain()
            recorded.drain_.rotate()
            seal(recorded.folder, recorded.writer, 0)
    recorded.drain()
    recorded.end()
    return recorded.folder


@pytest.fixture
def past(home):
    return Past(home)


def steps(series):
    return series.step.tolist()


def test_facts(past, home):
    """A run tells its id, name, project, folder, state and attempts."""
    assert (past.id, past.name, past.project, past.path) == ("run", "n", "p", home.path)
    assert (past.state, past.cause, past.attempts) == ("finished", "", [0])
    assert past.config is None
    assert repr(past) == f"<stepscope run run in {home.path}>"


def test_sealed_and_tail_are_one(past):
    """Rows of sealed files and of the tail are one series, each row once, in order."""
    assert past.names() == ["learning_rate", "loss"]
    assert steps(past.series("loss")) == list(range(1000))
    assert past.problems() == []


@pytest.mark.parametrize(("wanted", "expected"), [((490, 509), range(490, 510)), ((0, 0), [0]), ((2000, 3000), [])])
def test_range_of_steps(past, wanted, expected):
    """step_range is the first and the last step, both included."""
    assert steps(past.series("loss", step_range=wanted)) == list(expected)


@pytest.mark.promise("X-03")
def test_other_spellings(past):
    """A documented spelling finds the metric that was recorded under another."""
    assert past.series("lr").value.tolist() == past.series("learning_rate").value.tolist()
    assert past.series("lr").name == "lr"


def test_no_such_metric(past):
    """A name that is not there is an error that suggests one which is."""
    with pytest.raises(UsageError, match=r"did you mean 'loss'\?"):
        past.series("losss")
    with pytest.raises(UsageError, match=r"names\(\) lists"):
        past.series("zzz")


def test_spikes_are_visible_at_any_zoom(past):
    """However few points are asked for, minimum, maximum and NaN are among them, at their steps."""
    for points in (1, 5, 50, 999):
        found = past.series("loss", points=points)
        shown = dict(zip(steps(found), found.value.tolist(), strict=True))
        assert (shown[200], shown[700], math.isnan(shown[100])) == (1e6, -1e6, True)
        assert found.buckets.count.sum() == 1000
        assert len(found) <= 4 * (points + 1)
    assert past.series("loss", points=1000).buckets is None


def test_buckets_through_the_pyramid(tmp_path):
    """Buckets from the pyramid of sealed files and from the tail equal a raw scan over the same points."""
    folder = make_folder(tmp_path / "run")
    noise = np.random.default_rng(3)
    whole = []
    for rank in (0, 1):
        for unit in range(3):
            value = noise.normal(size=5000)
            value[noise.integers(0, 5000, 20)] = np.nan
            first = unit * 5000
            step = np.arange(first, first + 5000, dtype=np.int64)
            none = np.full(5000, NO_STEP, np.int64)
            zeros = np.zeros(5000, np.int32)
            points = Points(["x"], zeros, zeros + rank, zeros, step, step // 2, step * 10, value, none)
            whole.append(points)
            write_sealed(
                folder.path / "metrics", f"n{rank}-0-{unit}-{unit}", points, last_seq={str(rank): first + 4999}
            )
    past = Past(folder)
    raw = Points.concat(whole)
    for wanted in (10, 100, 200):
        found = past.series("x", points=wanted)
        check_against_raw(raw, found.buckets)
        assert len(found.buckets) <= 2 * wanted + 8
    check_against_raw(raw.select(raw.rank == 1), past.series("x", rank=1, points=50).buckets)
    cut = raw.select((raw.rank == 0) & (raw.step >= 1234) & (raw.step <= 6001))
    found = past.series("x", rank=0, step_range=(1234, 6001), points=20)
    assert found.buckets.count.sum() == len(cut)
    finite = cut.value[np.isfinite(cut.value)]
    assert (np.nanmin(found.buckets.min), np.nanmax(found.buckets.max)) == (finite.min(), finite.max())
    assert found.buckets.nonfinite.sum() == len(cut) - len(finite)


@pytest.mark.promise("X-04")
def test_alias_scales_the_buckets_too(tmp_path):
    """A spelling in another unit scales values and buckets alike."""
    recorded = Recorded(tmp_path)
    for number in range(200):
        recorded.run.log({"memory/peak_bytes": float(number * 2**20)})
    recorded.drain()
    past = recorded.past()
    assert past.series("memory_peak_mb").value.tolist() == [float(number) for number in range(200)]
    buckets = past.series("peak_memory_mb", points=4).buckets
    assert (buckets.max.tolist(), buckets.last[-1]) == ([49.0, 99.0, 149.0, 199.0], 199.0)
    assert past.summary("memory_peak_mb")["max"] == 199.0


def test_steps_that_repeat_or_go_back(tmp_path):
    """Steps may repeat, go back or be sparse: nothing is dropped for its order."""
    recorded = Recorded(tmp_path)
    order = [*range(100), *range(50, 150), 7, 7, 10**12, -3]
    for step in order:
        recorded.run.log({"a": float(step)}, step=step)
    recorded.drain()
    assert steps(recorded.past().series("a")) == order
    recorded.drain_.rotate()
    seal(recorded.folder, recorded.writer, 0)
    assert steps(recorded.past().series("a")) == order
    assert steps(recorded.past().series("a", step_range=(7, 7))) == [7, 7, 7]


def test_filters(tmp_path):
    """Rank and attempt select; without them all ranks follow one another, each by attempt."""
    first = Recorded(tmp_path)
    second = Recorded(tmp_path / "b", folder=first.folder, writer=Writer("node", 1), rank=1)
    for number in range(3):
        first.run.log({"a": float(number)})
        second.run.log({"a": 10.0 + number})
    first.drain()
    second.drain()
    second.drain_.rotate()
    seal(first.folder, Writer("node", 1), 0)
    past = first.past()
    assert past.series("a").value.tolist() == [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]
    assert past.series("a", rank=1).value.tolist() == past.series("a", attempt=1).value.tolist() == [10.0, 11.0, 12.0]
    assert len(past.series("a", rank=1, attempt=0)) == 0
    assert len(past.series("a", rank=7, points=3)) == 0


@pytest.mark.promise("S4-046")
def test_summary(past):
    """A summary is over all points, or over the last so many."""
    found = past.summary("loss")
    assert (found["count"], found["nonfinite"], found["max"], found["min"]) == (1000, 1, 1e6, -1e6)
    last = past.summary("loss", window=10)
    assert (last["count"], last["last"]) == (10, 1 / 1000)
    assert last["mean"] == pytest.approx(np.mean([1 / (number + 1) for number in range(990, 1000)]))


def test_times(past):
    """Times are seconds since 1970, and never go back in what one process logged."""
    time = past.series("loss").time
    assert (np.diff(time) >= 0).all()
    assert time[0] >= PAIR[0] / 1e9


def test_points_of_some_names(past):
    """points() gives the columns of some metrics, or of all."""
    assert set(past.points().names) == {"loss", "learning_rate"}
    assert len(past.points(["loss"])) == 1000
    assert len(past.points([])) == 0


def test_run_without_rows(tmp_path):
    """A run that has recorded nothing yet has no names, no events and no problems."""
    past = Past(make_folder(tmp_path / "run"))
    assert (past.names(), past.events(), past.problems(), past.state) == ([], [], [], "running")


def test_copied_folder(home, tmp_path):
    """A copied folder reads like the original."""
    copy = shutil.copytree(home.path, tmp_path / "elsewhere")
    from stepscope.store.layout import RunFolder

    assert values_of(Past(RunFolder(copy)).points()) == values_of(Past(home).points())


def test_following_a_live_run(tmp_path):
    """Every call reads what is there at that moment."""
    recorded = Recorded(tmp_path)
    past = recorded.past()
    for number in range(3):
        recorded.run.log({"a": float(number)})
        recorded.drain()
        assert len(past.series("a")) == number + 1


def test_run_made_anew_under_the_same_path(tmp_path):
    """A run that was deleted and recorded anew in the same place, with files of the same size, is read as it is now."""
    for value in (1.0, 2.0):
        recorded = Recorded(tmp_path)
        recorded.run.log({"a": value})
        recorded.drain()
        recorded.drain_.rotate()
        assert recorded.past().series("a").value.tolist() == [value]
        seal(recorded.folder, recorded.writer, 0)
        assert recorded.past().series("a").value.tolist() == [value]
        shutil.rmtree(recorded.folder.path)


def test_files_that_go_while_they_are_read(tmp_path, monkeypatch):
    """A file that is sealed away between the listing and the reading is looked for again."""
    recorded = Recorded(tmp_path)
    recorded.run.log({"a": 1.0})
    recorded.drain()
    recorded.drain_.rotate()
    past = recorded.past()
    true, calls = reader_module.take_snapshot, []

    def snapshot(folder):
        calls.append(1)
        if len(calls) == 1:
            seal(recorded.folder, recorded.writer, 0)
            raise FileNotFoundError
        return true(folder)

    monkeypatch.setattr(reader_module, "take_snapshot", snapshot)
    assert past.series("a").value.tolist() == [1.0]


def test_files_that_always_go(tmp_path, monkeypatch):
    """A folder that changes under every look is an error in the end."""
    past = Past(make_folder(tmp_path / "run"))

    def snapshot(_):
        raise FileNotFoundError("gone")

    monkeypatch.setattr(reader_module, "take_snapshot", snapshot)
    with pytest.raises(FileNotFoundError):
        past.names()


def test_damage_is_told(tmp_path):
    """What cannot be read of tail, sealed files, events and nodes is told, and the rest is read."""
    recorded = Recorded(tmp_path)
    for number in range(10):
        recorded.run.log({"a": float(number), "note": "x"})
        recorded.drain()
        if number == 4:
            recorded.drain_.rotate()
            seal(recorded.folder, recorded.writer, 0)
    recorded.end()
    spoil(recorded.folder.all_units()[0].path, 20)
    spoil(recorded.folder.all_tails()[0].path, -200)
    spoil(recorded.folder.events_file(recorded.writer), 40)
    (recorded.folder.path / "nodes" / "bad-0.json").write_text("{")
    past = recorded.past()
    problems = past.problems()
    assert len(problems) == 4
    found = past.series("a").value.tolist()
    assert set(found) < set(map(float, range(10)))
    assert len(past.events()) == 9


def spoil(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def test_frame(past, monkeypatch):
    """frame() gives all points to pandas, else to polars; without either it says what to install."""
    made = SimpleNamespace(DataFrame=lambda columns: columns)
    points = past.points()
    monkeypatch.setattr(past, "points", lambda: points)  # DuckDB would take the stand-in for the real pandas for good
    specs = {"pandas": None, "polars": None}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: specs[name])
    with pytest.raises(UsageError, match="pandas nor polars"):
        past.frame()
    for module in ("polars", "pandas"):
        specs[module] = True
        monkeypatch.setitem(sys.modules, module, made)
        columns = past.frame()
        assert list(columns) == ["name", "rank", "attempt", "step", "time", "value"]
        assert set(columns["name"].tolist()) == {"loss", "learning_rate"}
        specs[module] = None


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (None, "no run.json"),
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[" * 10**5, "cannot be read"),
        ("[]", "does not describe a run"),
        ('{"id": 5, "format": 1}', "does not describe a run"),
        ('{"id": "x", "format": 1, "name": 7}', "does not describe a run"),
        ('{"id": "x", "format": 1, "created": "today"}', "does not describe a run"),
        ('{"id": "x"}', "format None"),
        ('{"id": "x", "format": 2}', "newer than ours"),
    ],
    ids=lambda text: str(text)[:40],
)
def test_broken_run_file(tmp_path, text, cause):
    """A run whose run.json is missing, damaged or of a later format is refused with the reason."""
    folder = make_folder(tmp_path / "run")
    os.unlink(folder.run_file)
    if text is not None:
        folder.run_file.write_text(text)
    with pytest.raises(StepscopeError, match=cause):
        Past(folder)


def same_series(left, right):
    columns = ("step", "time", "value", "rank", "attempt")
    same = all(getattr(left, key).tobytes() == getattr(right, key).tobytes() for key in columns)
    if left.buckets is None or right.buckets is None:
        return same and left.buckets is right.buckets
    return same and left.buckets.count.tolist() == right.buckets.count.tolist()


@pytest.mark.parametrize("points", [1, 3, 50, 2000])
def test_many_series_at_once(past, points):
    """overview() gives each metric as series() does, from points or from the pyramid, with the tail's rows."""
    found = past.overview(points=points)
    assert sorted(found) == past.names()
    assert all(same_series(series, past.series(name, points=points)) for name, series in found.items())


def test_some_series_at_once(past):
    """overview() of some names leaves out those that the run does not have."""
    assert list(past.overview(["loss", "none"], points=10)) == ["loss"]
    assert past.overview([]) == {}
