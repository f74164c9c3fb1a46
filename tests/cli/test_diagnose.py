"""`stepscope diagnose`: for people, for programs, for runs and for files of other tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepscope
from bench.diagnosing import write
from stepscope.cli.main import main
from stepscope.importers.transfer import read
from stepscope.sources.diagnosis import diagnose, diagnose_imported
from stepscope.sources.imported_run import store

STATES = Path(__file__).parents[3] / "shared" / "data" / "hf-trainer-state" / "trainer_state.json"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one run that waits for its data."""
    path = tmp_path_factory.mktemp("runs")
    write(path / "project" / "waits", 2000)
    return path


def test_json_is_what_the_issue_promises(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`run`, `primary` and `findings`, each with its keys."""
    assert main(["diagnose", "waits", "--dir", str(root), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["primary"] == "input_bound"
    assert told["run"]["id"] == "waits"
    keys = {"kind", "severity", "confidence", "cost_seconds", "expected_gain", "evidence", "remedy", "rank"}
    assert all(keys <= set(one) for one in told["findings"])


@pytest.mark.parametrize("width", [60, 80, 160])
def test_people_read_verdict_gain_and_remedy_at_any_width(
    root: Path, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line is longer than the terminal, and there is no colour in a pipe."""
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["diagnose", "waits", "--dir", str(root), "--price", "2.5", "--all"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= width
    assert "\x1b" not in printed
    words = " ".join(printed.split())
    assert "verdict input_bound" in words
    assert "gain step" in words
    assert "do the training process builds its own batches" in words
    assert "USD" in words
    assert "Not recorded" in words


@pytest.mark.skipif(not STATES.exists(), reason="the shared data are not on this machine")
def test_a_file_of_another_tool_is_diagnosed(capsys: pytest.CaptureFixture[str]) -> None:
    """A fine-tuning of thirty epochs has overfitted since its second."""
    assert main(["diagnose", str(STATES), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["primary"] == "overfitting"
    assert told["run"]["format"] == "trainer_state"


def test_what_is_no_run_is_said_in_one_sentence(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what to do."""
    assert main(["diagnose", "nothing", "--dir", str(root)]) == 1
    assert capsys.readouterr().err.startswith("stepscope: cannot ")


def test_an_imported_log_says_the_same_by_file_and_by_run(tmp_path: Path) -> None:
    """A row of a log that has one every ten steps stands for ten; each of them takes what it says."""
    log = tmp_path / "train.log"
    row = "iteration {:8d}/  1000 | elapsed time per iteration (ms): 2000.0 | lm loss: {:.3E} | grad norm: 0.5 |\n"
    log.write_text("".join(row.format(step, 3 - step / 1000) for step in range(10, 210, 10)))
    (run,) = read(str(log))
    stored = store(run, tmp_path / "runs")
    told = [diagnose_imported(run), diagnose(stepscope.open(stored.path))]
    assert [(one["steps"], one["seconds"]) for one in told] == [(200, 400.0), (200, 400.0)]
    assert told[0]["missing"] == told[1]["missing"]
