from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.cli.main import main
from stepscope.core.names import clean
from stepscope.importers.imported import Imported, series_of
from stepscope.sources import imported_run
from stepscope.sources.opened_run import open_run
from stepscope.store.catalog import runs
from stepscope.store.points import Points
from tests.exporters.recorded import make_run, points_of, seal_points, tell, without_steps

BITS = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1 << 63, 0x7FF0 << 48, 0xFFF0 << 48, 0x7FF8 << 48])
VALUES = st.lists(BITS.map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]), min_size=1, max_size=5)
NAMES = st.text(min_size=1, max_size=8).map(lambda text: clean(text)[0]).filter(bool) | st.sampled_from(
    ["=cmd()", "'=x", "''+1", "'quoted", "-x", '"', "a,b", "loss"]
)
EXACT = ["csv", "json", "jsonl", "parquet", "arrow"]


def call(*arguments):
    return main([str(argument) for argument in arguments])


def everything(past):
    """Return all points as a list to compare, values by their bits and NaN by its kind."""
    points = past.points()
    columns = (points.rank, points.attempt, points.seq, points.step, points.time)
    names = [points.names[code] for code in points.name.tolist()]
    values = ["nan" if math.isnan(value) else struct.pack("<d", value) for value in points.value.tolist()]
    return sorted(zip(names, *(column.tolist() for column in columns), values, strict=True))


def there_and_back(folder, form, place):
    target = place / f"out.{form}"
    assert call("export", folder.path, "--format", form, "--output", target) == 0
    assert call("import", target, "--dir", place / "back", "--json") == 0
    [info] = runs(place / "back")
    return open_run(info.path)


@pytest.mark.slow
@pytest.mark.parametrize("form", EXACT)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3))
def test_a_run_comes_back_to_the_last_bit(form, tmp_path_factory, capsys, metrics):
    """Export and import give the same names, ranks, attempts, sequences, steps, times and values."""
    if form == "arrow":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    place = tmp_path_factory.mktemp("trip")
    folder = make_run(place / "runs")
    others = [points_of({"loss": [1.5]}, rank=3, attempt=2), without_steps(points_of({"cpu": [0.1]}, rank=-1))]
    seal_points(folder, Points.concat([points_of(metrics, first=7), *others]))
    past = open_run(folder.path)
    assert everything(there_and_back(folder, form, place)) == everything(past)
    capsys.readouterr()


def test_tensorboard_comes_back_with_exact_values(tmp_path, capsys):
    """An export for TensorBoard comes back with the same steps, times and 64-bit values."""
    folder = make_run(tmp_path / "runs")
    seal_points(folder, points_of({"my/metric": [0.1, 1e300, -0.0, math.inf, 1 / 3]}))
    back = there_and_back(folder, "tensorboard", tmp_path).series("my/metric")
    assert back.value.tolist() == [0.1, 1e300, -0.0, math.inf, 1 / 3]
    assert back.step.tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(back.time, open_run(folder.path).series("my/metric").time)
    capsys.readouterr()


def test_a_json_document_brings_the_run_itself_back(tmp_path, capsys):
    """Id, name, project, configuration, state and events come back; laid out anew, it is read all the same."""
    folder = make_run(tmp_path / "runs", config={"lr": 0.1, "wrong": math.nan}, state="failed")
    seal_points(folder, points_of({"loss": [0.5, 0.25]}))
    tell(folder, "checkpoint", path="a.pt")
    past, back = open_run(folder.path), there_and_back(folder, "json", tmp_path)
    assert (back.id, back.name, back.project, back.state) == (past.id, past.name, past.project, "failed")
    assert (back.meta["created"], back.config) == (past.meta["created"], {"lr": 0.1, "wrong": "nan"})
    assert [(event["kind"], event["step"], event["time"]) for event in back.events()] == [
        (event["kind"], event["step"], event["time"]) for event in past.events()
    ]
    whole = json.loads((tmp_path / "out.json").read_text())
    (tmp_path / "indented.json").write_text(json.dumps(whole, indent=2).replace("{\n  ", "{", 1))
    assert call("import", tmp_path / "indented.json", "--dir", tmp_path / "again") == 0
    assert everything(open_run(past.id, tmp_path / "again")) == everything(past)
    capsys.readouterr()


def test_the_document_states_units_and_times(tmp_path, capsys):
    """A JSON export has units, ISO times, strict numbers and one order of keys."""
    folder = make_run(tmp_path / "runs")
    seal_points(folder, points_of({"step_seconds": [0.5], "loss": [math.nan]}))
    assert call("export", folder.path, "--format", "json") == 0
    text = capsys.readouterr().out
    found = json.loads(text, parse_constant=pytest.fail)
    assert list(found) == ["stepscope", "run", "metrics", "points", "events"]
    assert [(one["name"], one.get("unit")) for one in found["metrics"]] == [("loss", ""), ("step_seconds", "seconds")]
    assert found["points"][0]["value"] == ["nan"]
    assert found["points"][1]["time"] == ["2023-11-14T22:13:20.000000Z"]
    assert call("export", folder.path, "--format", "json") == 0
    assert capsys.readouterr().out == text


def test_another_tools_log_becomes_a_run(tmp_path, capsys):
    """What an importer reads is stored with its source, can be read and listed, and is not stored twice."""
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0, "lr": 0.1}\n')
    arguments = ("import", tmp_path / "log.jsonl", "--dir", tmp_path / "runs", "--project", "old", "--name", "mine")
    assert call(*arguments) == 0
    assert "3 points of 2 metrics" in capsys.readouterr().out
    assert call(*arguments) == 0
    assert "was there already" in capsys.readouterr().out
    [info] = runs(tmp_path / "runs")
    assert (info.name, info.project, info.state, info.step) == ("mine", "old", "finished", 2)
    past = open_run(info.path)
    assert past.meta["imported"]["format"] == "jsonl"
    assert past.series("loss").value.tolist() == [2.0, 1.0]


def test_the_last_step_is_that_of_all_files(tmp_path, capsys, monkeypatch):
    """A large import in several files has the step of its longest metric, not that of the last file."""
    monkeypatch.setattr(imported_run, "PORTION", 1)
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 2.0, "noise": 0.1}\n{"step": 2, "loss": 1.0}\n')
    assert call("import", tmp_path / "log.jsonl", "--dir", tmp_path / "runs") == 0
    assert [info.step for info in runs(tmp_path / "runs")] == [2]
    capsys.readouterr()


def test_a_run_of_the_same_id_is_kept(tmp_path, capsys):
    """An import never replaces another run."""
    folder = make_run(tmp_path / "runs")
    seal_points(folder, points_of({"loss": [0.5]}))
    assert call("export", folder.path, "--format", "json", "--output", tmp_path / "a.json") == 0
    assert call("import", tmp_path / "a.json", "--dir", tmp_path / "runs") == 1
    assert "--id" in capsys.readouterr().err
    assert call("import", tmp_path / "a.json", "--dir", tmp_path / "runs", "--id", "second") == 0
    assert len(runs(tmp_path / "runs")) == 2
    capsys.readouterr()


def test_nothing_is_left_when_it_fails(tmp_path, capsys, monkeypatch):
    """A disk that refuses leaves no half of a run."""

    def refuse(*_arguments, **_named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(imported_run, "write_sealed", refuse)
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    assert call("import", tmp_path / "log.jsonl", "--dir", tmp_path / "runs") == 1
    assert [path for path in (tmp_path / "runs").rglob("*") if path.is_file()] == []
    assert "No space left" in capsys.readouterr().err


@pytest.mark.promise("S3-050")
def test_tables_of_epochs_are_one_run(tmp_path, capsys):
    """resource_logs/epoch_*.csv become one run, in the order of the epochs' numbers."""
    logs = tmp_path / "resource_logs"
    logs.mkdir()
    for epoch in (0, 2, 10):
        rows = "".join(f"{1.7e9 + epoch * 10 + at},{epoch * 2 + at},{epoch + at / 10}\n" for at in range(2))
        (logs / f"epoch_{epoch}.csv").write_text(f"time,step,cpu/usage_ratio\n{rows}")
    assert call("import", logs, "--dir", tmp_path / "runs") == 0
    [info] = runs(tmp_path / "runs")
    series = open_run(info.path).series("cpu/usage_ratio")
    assert series.value.tolist() == [0.0, 0.1, 2.0, 2.1, 10.0, 10.1]
    assert info.name == "resource_logs"
    capsys.readouterr()


@pytest.mark.parametrize(
    "text", ["", "nonsense", "{}", '{"stepscope":1}', "name,rank,attempt,seq,step,time,value\nx\n"]
)
def test_what_is_no_run_is_refused(tmp_path, capsys, text):
    """A file without numbers gives an error that says why, and no run."""
    (tmp_path / "file").write_text(text)
    assert call("import", tmp_path / "file", "--dir", tmp_path / "runs") in {1, 2}
    assert capsys.readouterr().err.startswith("stepscope: cannot ")
    assert not (tmp_path / "runs").exists()


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["csv", "json", "jsonl"]), st.data())
def test_damaged_exports_never_break_the_reader(form, data):
    """Bytes that were cut or changed are left out or refused, never an error of ours."""
    import tempfile

    from stepscope.core.errors import StepscopeError
    from stepscope.importers import formats

    whole = {
        "csv": b"name,rank,attempt,seq,step,time,value\nloss,0,0,0,1,2023-11-14T22:13:20.000000Z,0.5\n",
        "jsonl": b'{"name":"a","rank":0,"attempt":0,"seq":0,"step":1,"time":"2023-11-14T22:13:20Z","value":1.0}\n',
        "json": b'{"stepscope":1,\n"run":{"id":"a"},\n"metrics":[\n{"name":"a"}\n],\n"points":[\n{"name":"a","rank":0,'
        b'"attempt":0,"seq":[0],"step":[1],"time":["2023-11-14T22:13:20Z"],"value":[1.0]}\n],\n"events":[\n]}\n',
    }[form]
    at = data.draw(st.integers(0, len(whole)))
    damaged = whole[:at] + data.draw(st.binary(max_size=6)) + whole[data.draw(st.integers(at, len(whole))) :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(damaged)
        try:
            found = formats.read(str(path))
        except StepscopeError:
            return
        assert all(len(series.value) == len(series.step) for run in found for series in run.columns.values())


def folder_of_runs(place):
    """Make a folder with two runs, a file that is cut, and one of no format."""
    for name, losses in (("a", [2.0, 1.0]), ("b", [3.0])):
        (place / name).mkdir(parents=True)
        rows = [{"step": step, "loss": loss, "time": 1.7e9 + step} for step, loss in enumerate(losses)]
        (place / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "cut.parquet").write_bytes(b"PAR1 cut")
    (place / "notes.bin").write_bytes(b"\x00\x01 no run")
    return place


def test_a_folder_gives_its_runs_and_says_what_cannot_be_read(tmp_path, capsys):
    """Whatever can be read is kept; the rest is listed with the reason, and a second import adds nothing."""
    source = folder_of_runs(tmp_path / "source")
    assert call("import", source, "--dir", tmp_path / "runs") == 0
    told = capsys.readouterr()
    assert "2 runs imported, 1 could not be read, 1 file of other kinds" in told.out
    assert f"cannot read {str(source / 'cut.parquet')!r}: it is no Parquet file of points" in told.err
    assert {info.name for info in runs(tmp_path / "runs")} == {"a", "b"}
    assert call("import", source, "--dir", tmp_path / "runs") == 0
    assert "0 runs imported, 2 there already" in capsys.readouterr().out


def test_a_dry_run_lists_and_writes_nothing(tmp_path, capsys):
    """--dry-run shows the runs that an import would store, and stores none."""
    source = folder_of_runs(tmp_path / "source")
    assert call("import", source, "--dir", tmp_path / "runs", "--dry-run", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["points"], one["existed"]) for one in found["runs"]] == [("a", 2, False), ("b", 1, False)]
    assert not (tmp_path / "runs").exists()


def test_labels_and_the_end_come_along(tmp_path, capsys):
    """Tags, notes, group, name and state of a source are those of the stored run; an unknown end is inferred."""
    facts = {"tags": ["a", "b"], "notes": "why", "group": "g", "name": "n", "state": "failed", "cause": "exit code 3"}
    stored = imported_run.store(Imported("x", "some", {"loss": series_of("loss", [0], [1.0])}, facts), tmp_path)
    past = open_run(stored.path)
    assert (past.tags, past.notes, past.group, past.name) == (("a", "b"), "why", "g", "n")
    assert (past.state, past.cause) == ("failed", "exit code 3")
    unknown = imported_run.store(Imported("x", "some", {"loss": series_of("loss", [0], [2.0])}), tmp_path)
    assert json.loads((unknown.path / "nodes" / "imported-0.json").read_text())["ranks"]["0"]["inferred"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("logs/big run/events.out.tfevents.1.host.0", "big run"),
        ("lightning_logs/version_3/metrics.csv", "lightning_logs/version_3"),
        ("out/checkpoint-50/trainer_state.json", "out"),
        ("train.log", "train.log"),
        ("metrics.csv", "metrics.csv"),
    ],
)
def test_a_run_is_called_after_its_file_or_the_folder_that_tells_it_apart(path, name):
    """A file name that every run has says nothing: the folder's name is taken."""
    assert imported_run.name_of(path) == name
