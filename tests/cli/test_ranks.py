"""`stepscope ranks`."""

from __future__ import annotations

import json

import pytest

from stepscope.cli.main import main
from stepscope.core.terminal_text import width_of
from stepscope.store.layout import RunFolder
from tests.exporters.recorded import tell
from tests.fleet import fleet


def printed(capsys, *words):
    """Run the command and return its exit code and what it printed."""
    code = main(["ranks", *map(str, words), "--quiet"])
    return code, capsys.readouterr()


def test_the_late_rank_is_first(tmp_path, capsys, monkeypatch):
    """The summary names it, and its line shows by how much and in which phase."""
    monkeypatch.setenv("COLUMNS", "120")
    past = fleet(tmp_path, late=2, behind=3)
    code, told = printed(capsys, past.path)
    assert code == 0
    assert told.out.startswith("4 ranks on 2 nodes, steps 196 to 199; rank 2 on node-1 is late by 40 ms")
    line = next(line for line in told.out.splitlines() if line.lstrip().startswith("2 "))
    assert told.out.splitlines()[told.out.splitlines().index(line) - 1].lstrip().startswith("rank")
    assert ("196 (-3)" in line, "+40 ms" in line, "data" in line, "█" in line or "▓" in line) == (True,) * 4


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_lines_fit_the_terminal(tmp_path, capsys, monkeypatch, columns):
    """No line is longer than the terminal."""
    monkeypatch.setenv("COLUMNS", columns)
    past = fleet(tmp_path, nodes=3, late=2)
    tell(RunFolder(past.path), "rank_placed", coordinates={"data": 1, "tensor": 0})
    for words in ((), ("--by", "node"), ("--step", "7"), ("--what", "loss")):
        _, told = printed(capsys, past.path, *words)
        assert max(map(width_of, told.out.splitlines())) <= int(columns)


def test_groups_have_one_line_each(tmp_path, capsys):
    """Grouped by node, each line names its worst rank; --limit says what it leaves out."""
    _, told = printed(capsys, fleet(tmp_path, nodes=3, late=5).path, "--by", "node", "--limit", "1")
    assert "node-2" in told.out
    assert "and 2 lines more" in told.out


def test_one_step_is_shown_beside_the_median(tmp_path, capsys):
    """--step shows the phases of the latest rank in that step, and marks those in which ranks wait."""
    _, told = printed(capsys, fleet(tmp_path, late=1).path, "--step", "20")
    assert told.out.startswith("step 20 of rank 1 on node-0: 200 ms, 40 ms later than the median of 4 ranks")
    assert "may wait for other ranks" in told.out


def test_json_has_the_same_facts(tmp_path, capsys):
    """Rows, groups and the map are in the JSON, which scripts read."""
    past = fleet(tmp_path, late=3)
    facts = json.loads(printed(capsys, past.path, "--json", "--sort", "rank")[1].out)
    assert [row["rank"] for row in facts["rows"]] == [0, 1, 2, 3]
    assert facts["rows"][3]["late_seconds"] == pytest.approx(0.04)
    assert facts["late"] == [3]
    assert facts["map"]["unit"] == "seconds"
    grouped = json.loads(printed(capsys, past.path, "--json", "--by", "node")[1].out)
    assert [group["group"] for group in grouped["groups"]] == ["node-1", "node-0"]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--by", "tensor"), "the ranks of this run differ in node"),
        (("--what", "nothing"), "has none of that name"),
        (("--step", "99999"), "no rank recorded it"),
        (("--step", "9", "--rank", "77"), "rank 77 has not recorded it"),
        (("--rank", "1"), "add --step N"),
    ],
)
def test_what_is_not_there_is_said(tmp_path, capsys, words, cause):
    """A group, metric, step or rank that the run does not have is an error of usage."""
    code, told = printed(capsys, fleet(tmp_path).path, *words)
    assert code == 2
    assert cause in told.err


@pytest.mark.parametrize("span", ["7", "9:3", "a:b"])
def test_a_range_of_steps_has_two_ends(capsys, span):
    """A range that is none is refused."""
    with pytest.raises(SystemExit):
        main(["ranks", "latest", "--steps", span])
    assert "is no range of steps" in capsys.readouterr().err


def test_a_run_without_steps_says_so(tmp_path, capsys):
    """Before the first step there are states and no figures."""
    _, told = printed(capsys, fleet(tmp_path).path, "--steps", "500:600")
    assert "no step times were recorded" in told.out
