from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from stepscope.cli.main import main
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.terminal_text import width_of
from stepscope.sources.baselines import baseline_path
from stepscope.sources.groups import group_of
from tests.exporters.recorded import make_run, points_of, seal_points


def record(root, name, level, seed, **more):
    """Write a finished run of 300 steps."""
    draw = np.random.default_rng(seed)
    value = level * (1 + draw.normal(0, 0.01, 300))
    curves = {"step_seconds": value.tolist(), "phase/forward": (value / 2).tolist(), "samples": [32.0] * 300}
    curves["train_loss"] = (2 + np.exp(-np.arange(300) / 80) + draw.normal(0, 0.01, 300)).tolist()
    curves["memory/peak_bytes"] = [1e9, 2e9]
    folder = make_run(root, name, "p")
    facts = json.loads(folder.run_file.read_text())
    folder.run_file.write_text(json.dumps({**facts, **more}))
    seal_points(folder, points_of(curves))


@pytest.fixture
def root(tmp_path):
    """Three repeats of a program, and three of one that is 10 % slower."""
    for at in range(3):
        record(tmp_path, f"a{at}", 0.1, at)
        record(tmp_path, f"b{at}", 0.11, 10 + at)
    return tmp_path


@pytest.fixture
def compare(root, capsys, monkeypatch):
    """Run `stepscope compare` on the test's own root; return its exit code and what it prints."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(root)

    def call(*arguments, command="compare"):
        code = main([command, *arguments, "--dir", str(root)])
        out = capsys.readouterr()
        return code, out.out or out.err

    return call


A, B = "a0,a1,a2", "b0,b1,b2"


def test_table_fits_and_has_no_colour(compare):
    """In 80 columns and in a pipe every line fits, and nothing acts on a terminal."""
    code, text = compare(A, B)
    assert code == 0
    assert "slower" in text
    assert "\x1b" not in text
    assert max(map(width_of, text.splitlines())) <= 80


@pytest.mark.promise("S0-085")
def test_json_has_values_difference_interval_verdict_and_why(compare):
    """Per quantity JSON has the two values, the difference, its interval, the verdict and why."""
    code, text = compare(A, B, "--json")
    facts = json.loads(text)
    (one,) = facts["comparisons"]
    found = {item["quantity"]: item for item in one["quantities"]}
    step = found["step_seconds"]
    assert code == 0
    assert (step["verdict"], step["unit"]) == ("slower", "seconds")
    assert step["b"] - step["a"] == pytest.approx(step["difference"])
    assert step["interval"][0] < step["ratio"] < step["interval"][1]
    assert step["ratio"] == pytest.approx(0.1, abs=0.01)
    assert step["why"]
    assert {"samples_per_second", "phase/forward", "memory/peak_bytes", "loss@299"} <= found.keys()
    assert found["loss@299"]["verdict"] == "no difference"
    assert facts["passed"] is True


@pytest.mark.parametrize(
    ("gate", "code"),
    [
        ("step_seconds +3%", 3),
        ("step_seconds +20%", 0),
        ("memory/peak_bytes +5%", 0),
        ("loss@200 +1%", 0),
        ("samples_per_second -3%", 3),
        ("nothing/there +1%", 3),
        ("nonsense", 2),
        ("loss@ +1%", 2),
    ],
)
def test_gates_set_the_exit_code(compare, gate, code):
    """A gate that is not passed gives 3, one that is passed 0, and what is no gate is wrong usage."""
    assert compare(A, B, "--gate", gate)[0] == code


def test_junit_and_markdown_are_written(compare, tmp_path):
    """JUnit has a case a gate with its failure; Markdown has the table and the gates."""
    gates = ("--gate", "step_seconds +3%", "--gate", "memory/peak_bytes +5%", "--gate", "a|<b> +1%")
    code, _ = compare(A, B, *gates, "--junit", str(tmp_path / "j.xml"), "--markdown", str(tmp_path / "m.md"))
    suite = ET.parse(tmp_path / "j.xml").getroot()[0]
    assert code == 3
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    assert [[child.tag for child in case] for case in suite.iter("testcase")] == [["failure"], [], ["error"]]
    text = (tmp_path / "m.md").read_text()
    assert "**2 of 3 gates not passed**" in text
    assert r"| step\_seconds | " in text
    assert "<b>" not in text


def test_several_groups_are_each_compared_with_the_first(compare):
    """Every further argument is a group of its own beside A."""
    facts = json.loads(compare("a0", "a1", "b0", "--json")[1])
    assert [one["b"] for one in facts["comparisons"]] == ["a1", "b0"]


def test_groups_are_named_in_many_ways(root, monkeypatch):
    """A folder of runs, a project, a list, a pattern and a run are all groups."""
    monkeypatch.chdir(root)
    counts = {text: len(group_of(text, str(root)).runs) for text in ("p", str(root / "p"), A, "p/a*", "a1", "latest")}
    assert counts == {"p": 6, str(root / "p"): 6, A: 3, "p/a*": 3, "a1": 1, "latest": 1}
    with pytest.raises(StepscopeError, match="no such"):
        group_of("zebra", str(root))
    with pytest.raises(UsageError, match="names no run"):
        group_of("p/z*", str(root))


def test_files_of_other_tools_are_runs(compare, root):
    """An old log is compared with a run; what it does not have is not comparable."""
    lines = [json.dumps({"step": at, "loss": 2.0 + 1 / (at + 1)}) for at in range(300)]
    (root / "old.jsonl").write_text("\n".join(lines))
    facts = json.loads(compare("old.jsonl", "a0", "--json", "--gate", "loss@250 +50%")[1])
    assert facts["comparisons"][0]["gates"][0]["result"] == "passed"


@pytest.mark.promise("S0-084")
def test_baseline_is_saved_shown_and_compared(compare, root):
    """A saved baseline is listed, shown with its normal ranges, and compared as its runs are."""
    assert compare("save", "main", A, command="baseline")[0] == 0
    assert compare("show", command="baseline")[1].split() == ["main"]
    shown = json.loads(compare("show", "main", "--json", command="baseline")[1])
    step = next(item for item in shown["ranges"] if item["quantity"] == "step_seconds")
    assert step["low"] < 0.1 < step["high"] < 0.11
    assert compare("main", B, "--gate", "step_seconds +3%")[0] == 3
    assert compare("main", "a0,a1", "--gate", "step_seconds +3%")[0] == 0
    one = json.loads(compare("main", B, "--json")[1])["comparisons"][0]["quantities"]
    other = json.loads(compare(A, B, "--json")[1])["comparisons"][0]["quantities"]
    assert [item["ratio"] for item in one] == pytest.approx([item["ratio"] for item in other])


def test_baseline_is_not_replaced_unasked(compare, root):
    """A second baseline of a name needs --force; an odd name, a missing and a damaged one are said."""
    assert compare("save", "main", "a0", command="baseline")[0] == 0
    assert compare("save", "main", "a1", command="baseline")[0] == 2
    assert compare("save", "main", "a1", "--force", command="baseline")[0] == 0
    assert compare("save", "../x", "a1", command="baseline")[0] == 2
    assert compare("show", "none", command="baseline")[0] == 1
    baseline_path("main", str(root)).write_text('{"format": "stepscope-baseline", "version": 1}')
    assert compare("main", "a0")[0] == 1


@pytest.mark.promise("S0-084")
def test_targets_of_the_configuration_are_shown_and_can_be_a_gate(compare, root):
    """What the configuration sets as a target stands beside every comparison; `--gate targets` stops what misses it."""
    (root / "stepscope.yaml").write_text("targets: {step_seconds: 105 ms, memory/peak_bytes: 3 GB}")
    code, text = compare("a0", "b0")
    assert code == 0
    assert "missed" in text
    facts = json.loads(compare("a0", "b0", "--json", "--gate", "targets")[1])
    assert [aim["result"] for aim in facts["targets"]["a0"]] == ["met", "met"]
    assert [aim["result"] for aim in facts["targets"]["b0"]] == ["missed", "met"]
    assert facts["passed"] is False
    assert compare("b0", "a0", "--gate", "targets")[0] == 0


def test_unlike_runs_are_named(compare, root):
    """Another number of processors, and builds mixed in a group, are said."""
    record(root, "c0", 0.1, 20, cpu={"usable": 64}, git={"commit": "1" * 40})
    record(root, "c1", 0.1, 21, cpu={"usable": 2}, git={"commit": "2" * 40})
    text = " ".join(compare("c0", "c1")[1].split())
    assert "hardware of c0 and c1 differ: processors 64 -> 2" in text
    assert "mixes builds: commit" in " ".join(compare("a0", "c0,c1")[1].split())
