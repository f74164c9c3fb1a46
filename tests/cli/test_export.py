from __future__ import annotations

import json

import duckdb
import pytest

from stepscope.cli.main import main
from tests.exporters.recorded import leave_tail, make_run, points_of, seal_points


@pytest.fixture
def root(tmp_path):
    """One run, sealed and in a tail."""
    folder = make_run(tmp_path / "runs")
    seal_points(folder, points_of({"loss": [0.1, 0.2], "lr": [1e-3, 1e-3], "a,b": [1.0]}))
    leave_tail(folder, [{"loss": 0.3}], first=2)
    return tmp_path / "runs"


@pytest.fixture
def export(root, capfdbinary):
    """Run `stepscope export` and return its exit code, its output and its errors."""

    def call(*arguments, run="run-1"):
        code = main(["export", run, "--dir", str(root), *map(str, arguments)])
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return call


@pytest.mark.parametrize("arguments", [[], ["--output", "-"]])
def test_text_goes_to_standard_output(export, arguments):
    """Without a file, or with `-`, CSV goes to standard output and nothing else does."""
    code, out, err = export("--format", "csv", "--metrics", "loss", *arguments)
    assert (code, err) == (0, "")
    assert [line.rpartition(",")[2] for line in out.splitlines()] == ["value", "0.1", "0.2", "0.3"]


def test_a_file_is_written(export, tmp_path):
    """With a file, nothing goes to standard output."""
    assert export("--format", "jsonl", "--output", tmp_path / "out.jsonl") == (0, "", "")
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 6


def test_parquet_is_one_file(export, tmp_path):
    """Parquet is written to a file, which appears alone."""
    target = tmp_path / "out" / "run.parquet"
    target.parent.mkdir()
    assert export("--format", "parquet", "--output", target, "--metrics", "loss,lr")[0] == 0
    with duckdb.connect() as connection:
        rows = connection.execute("SELECT run, name, count(*) FROM read_parquet($1) GROUP BY ALL", [str(target)])
        assert sorted(rows.fetchall()) == [("run-1", "loss", 3), ("run-1", "lr", 2)]
    assert [path.name for path in target.parent.iterdir()] == ["run.parquet"]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_existing_files_are_kept(export, tmp_path, form):
    """No format replaces a file unless it is told to."""
    target = tmp_path / "out"
    target.write_text("mine")
    code, _, err = export("--format", form, "--output", target)
    assert (code, target.read_text()) == (2, "mine")
    assert "it exists already; choose another name, or replace it with --force" in err
    assert export("--format", form, "--output", target, "--force")[0] == 0
    assert target.read_bytes() != b"mine"


def test_metrics_are_chosen(export):
    """Metrics are chosen by name, in any spelling; a name with a comma in it is taken whole."""
    out = export("--format", "jsonl", "--metrics", "a,b", "--metrics", "learning_rate, loss")[1]
    assert {json.loads(line)["name"] for line in out.splitlines()} == {"a,b", "lr", "loss"}


@pytest.mark.promise("X-03")
def test_names_are_spelled_as_asked(export):
    """Names are written in the spelling that was asked for."""
    out = export("--format", "jsonl", "--metrics", "lr", "--spelling", "canonical")[1]
    assert {json.loads(line)["name"] for line in out.splitlines()} == {"learning_rate"}


def test_wide_has_a_column_a_metric(export):
    """The wide form has a row a step and a column a metric."""
    assert export("--format", "csv", "--wide", "--metrics", "loss,lr")[1].splitlines() == [
        "rank,attempt,step,loss,lr",
        "0,0,0,0.1,0.001",
        "0,0,1,0.2,0.001",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "parquet"], "cannot export parquet to standard output: it needs a file; name it with --output"),
        (["--format", "parquet", "--output", "-"], "cannot export parquet to standard output"),
        (
            ["--format", "jsonl", "--wide"],
            "cannot export jsonl with --wide: this format does not support it; leave --wide out",
        ),
        (["--format", "csv", "--metrics", "los"], "cannot export metric 'los'"),
    ],
)
def test_mistakes_are_told(export, arguments, message):
    """A request that cannot be served prints one message in our form, and exits with 2."""
    code, out, err = export(*arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_unknown_runs_and_formats_are_told(export):
    """A run that is not there fails; a format that is not there is wrong usage."""
    assert export("--format", "csv", run="nowhere")[0] == 1
    with pytest.raises(SystemExit) as stop:
        export("--format", "xlsx")
    assert stop.value.code == 2


def test_damage_is_told(root, export):
    """What could not be read is said on standard error; the rest is exported."""
    [unit] = (root / "mnist" / "run-1" / "metrics").glob("*-0-0-0.parquet")
    data = bytearray(unit.read_bytes())
    data[100] ^= 1
    unit.write_bytes(data)
    code, out, err = export("--format", "csv")
    assert (code, len(out.splitlines())) == (0, 2)
    assert err.count("does not match its checksum; 5 entries are left out") == 1
