"""`stepscope hang`: why a run or another job hangs, and that a run which hung says so wherever people look."""

from __future__ import annotations

import json
import pickle

import pytest

from stepscope.cli.main import main
from stepscope.core.terminal_text import width_of
from stepscope.sources.hang import recorded_verdict
from stepscope.store.layout import RunFolder
from stepscope.store.reader import Past
from stepscope.store.states import NodeState, RankState
from tests.exporters.recorded import CREATED
from tests.fleet import fleet
from tests.hung import hung_fleet, moves_again, record, verdict, write

FIELDS = {"kind", "ranks", "waiting", "text", "evidence", "remedy", "confidence", "problems"}


@pytest.fixture
def hang(capsys):
    """Run `stepscope hang` and return its exit code, its output and its errors."""

    def call(*words):
        code = main(["hang", *map(str, words), "--quiet"])
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


@pytest.fixture
def dumps(tmp_path):
    """Four dumps of a job whose rank 2 never entered the seventh collective."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank in range(4):
        dump(folder / f"_dump_{rank}", record(rank, 6 if rank == 2 else 7))
    return folder


def dump(path, facts):
    """Write a dump as torch does."""
    path.write_bytes(pickle.dumps(facts, 2))


def test_the_cause_of_a_recorded_hang_is_named(tmp_path, hang):
    """Verdict, certainty, the evidence of each source and the remedy are printed."""
    code, out, err = hang(hung_fleet(tmp_path).path)
    assert (code, err) == (0, "")
    assert out.startswith("hang: a rank never arrived\n")
    words = " ".join(out.split())
    assert "Rank 1 never entered all_reduce of 64 Float, number 7 of the default group" in words
    assert "rank 1 sleeps at data.py:41" in words
    for label in ("certainty", "steps", "stacks", "recorder", "do"):
        assert f"\n  {label} " in out


def test_json_has_every_field(tmp_path, hang):
    """Scripts get the ranks that are the cause, those that wait, and the sentences of each source."""
    code, out, _ = hang(hung_fleet(tmp_path, cause=3).path, "--json")
    told = json.loads(out)
    assert code == 0
    assert set(told) >= FIELDS
    assert (told["kind"], told["ranks"], told["waiting"]) == ("never_arrived", [3], [0, 1, 2])
    assert set(told["evidence"]) == {"steps", "stacks", "flight_recorder"}
    assert told["problems"] == []


def test_many_problems_are_counted(dumps, hang):
    """Thousands of files that cannot be used do not hide the verdict; JSON has all."""
    for number in range(100):
        (dumps / f"_dump_{number + 10}").write_bytes(b"")
    err = hang(dumps)[2].splitlines()
    assert (len(err), err[-1]) == (13, "stepscope: 88 more problems: see --json")
    assert len(json.loads(hang(dumps, "--json")[1])["problems"]) == 100


def test_a_run_that_moves_does_not_hang(tmp_path, hang):
    """It is said in a sentence, and is no error."""
    code, out, _ = hang(fleet(tmp_path).path)
    assert (code, out.splitlines()[0]) == (0, "no hang")


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_lines_fit_the_terminal(tmp_path, hang, monkeypatch, columns):
    """No line is longer than the terminal."""
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = hang(hung_fleet(tmp_path).path)
    assert max(map(width_of, out.splitlines())) <= int(columns)


@pytest.mark.parametrize("given", ["the folder", "the files"])
def test_dumps_of_another_job_are_judged(dumps, hang, given):
    """A folder and a list of files say the same."""
    words = [dumps] if given == "the folder" else sorted(dumps.iterdir())
    code, out, err = hang(*words, "--json")
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert (told["kind"], told["ranks"], told["waiting"]) == ("never_arrived", [2], [0, 1, 3])
    assert list(told["evidence"]) == ["flight_recorder"]


def test_dumps_that_cannot_be_used_are_named_and_the_rest_is_judged(dumps, hang):
    """One that is cut, one that is none, and a second one of the same rank cost a line each."""
    (dumps / "_dump_4").write_bytes((dumps / "_dump_0").read_bytes()[:-30])
    (dumps / "_dump_5").write_bytes(b"no dump at all")
    dump(dumps / "nccl_trace_rank_1", record(1, 7))
    code, out, err = hang(dumps)
    assert code == 0
    assert "Rank 2 never entered all_reduce" in out
    lines = err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("stepscope: ") and "used" in line for line in lines)
    assert json.loads(hang(dumps, "--json")[1])["problems"] == [line.removeprefix("stepscope: ") for line in lines]


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda folder: None, "no file in it is named like a dump"),
        (lambda folder: (folder / "_dump_0").write_bytes(b"{"), "_dump_0: not used"),
        (lambda folder: (folder / "_dump_0").write_bytes(pickle.dumps(record(0, 7))[:9]), "_dump_0: not used"),
        (lambda folder: (folder / "_dump_0").write_bytes(pickle.dumps([1])), "no dump of PyTorch's flight recorder"),
    ],
    ids=["empty folder", "no dump", "cut", "other data"],
)
def test_without_one_usable_dump_the_command_fails(tmp_path, hang, make, cause):
    """The error names the file, the cause and what to do."""
    make(tmp_path)
    code, out, err = hang(tmp_path)
    assert (code, out) == (1, "")
    assert err.startswith("stepscope: cannot read flight-recorder dumps: ")
    assert cause in err
    assert "name the files, or the folder that holds them" in err


@pytest.mark.parametrize("words", [("nosuchrun",), ("no/such/folder", "no/such/dump_1")], ids=["run", "files"])
def test_what_is_not_there_is_named(tmp_path, hang, words):
    """A run that is not there, and files that are not."""
    code, out, err = hang(*words, "--dir", tmp_path)
    assert (code, out) == (1, "")
    assert words[0] in err


@pytest.mark.parametrize("command", ["show", "diagnose", "ranks"])
def test_a_run_that_hung_says_so_wherever_people_look(tmp_path, capsys, command):
    """The sentence of the watchers is at the top while it stands, and gone once the ranks have moved again."""
    past = hung_fleet(tmp_path)

    def top():
        main([command, str(past.path)])
        return " ".join(" ".join(capsys.readouterr().out.splitlines()[:8]).split())

    said = "ank 1 never entered all_reduce: it sleeps at data.py:41"
    assert said in top()
    write(past.path / "events", [moves_again()])
    assert said not in top()


def test_the_report_of_a_run_that_hung_carries_the_verdict(tmp_path):
    """Sentence, evidence by source and remedy."""
    past = hung_fleet(tmp_path)
    target = tmp_path / "report.html"
    assert main(["report", str(past.path), "--html", str(target), "--quiet"]) == 0
    text = target.read_text("utf-8")
    assert "<p>rank 1 never entered all_reduce: it sleeps at data.py:41</p>" in text
    assert "<li>stacks: rank 1 sleeps at data.py:41</li>" in text
    assert verdict()["remedy"] in text


def test_a_second_attempt_does_not_hang_because_the_first_did(tmp_path, hang):
    """Verdict and evidence are those of the newest attempt."""
    past = hung_fleet(tmp_path)
    folder = RunFolder(past.path)
    NodeState("node-0.00000000", 1, time=CREATED, ended=True, ranks={0: RankState("running")}).save(folder)
    assert json.loads(hang(past.path, "--json")[1])["kind"] == "none"
    assert recorded_verdict(Past(folder)) is None
