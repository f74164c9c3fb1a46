from __future__ import annotations

import ast

import pytest

from bench.gauntlet import HEAD, Row, figures, line
from bench.gauntlet.cases import CASES, HEALTHY, Case
from bench.gauntlet.peer import is_right, with_lines
from bench.gauntlet.trial import SCRIPTS, Verdict

SCRIPT_FILES = sorted(SCRIPTS.glob("*.py"))


def found(kind, severity="warning", **more):
    return {"kind": kind, "severity": severity, **more}


def test_gauntlet_is_as_long_as_promised():
    """There are at least 30 planted causes and 15 healthy trainings, each with a name of its own."""
    assert len([case for case in CASES if not case.is_healthy]) >= 30
    assert len(HEALTHY) >= 15
    assert len({case.name for case in CASES}) == len(CASES)


def test_every_script_is_in_a_case():
    """No script lies about unused, and every case has one."""
    assert {path.name for path in SCRIPT_FILES} == {case.script for case in CASES}


@pytest.mark.parametrize("path", SCRIPT_FILES, ids=lambda path: path.stem)
def test_scripts_are_what_anybody_writes(path):
    """A script is plain torch: it imports nothing of ours and says in one line what it is."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert ast.get_docstring(tree)
    assert not any(name.partition(".")[0] in {"stepscope", "bench"} for name in names)
    assert "stepscope" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SCRIPT_FILES, ids=lambda path: path.stem)
def test_the_peer_gets_its_lines_into_every_script(path):
    """The copy for traceml-ai is a valid program with a traced step inside the innermost loop that trains."""
    text = with_lines(path.read_text(encoding="utf-8"))
    compile(text, str(path), "exec")
    assert text.count("traceml_ai.trace_step(") >= 1


def test_verdict_must_name_the_rank():
    """A straggler is found only if it is the right one."""
    case = Case("slow", "a.py", ("straggler",), ranks=2, rank=1)
    assert Verdict("straggler", [found("straggler", rank=1)]).is_right(case)
    assert not Verdict("straggler", [found("straggler", rank=0)]).is_right(case)
    assert not Verdict("none").is_right(case)


def test_gain_is_compared_with_what_the_removal_brought():
    """An expected gain of 50 % where 40 % came is wrong by a quarter."""
    case = Case("slow", "a.py", ("input_bound",), without=("--fast",))
    row = Row(case, Verdict("input_bound", [found("input_bound", gain_ratio=0.5)], 1.0), after=Verdict("none", [], 0.6))
    assert row.measured == pytest.approx(0.4)
    assert row.error == pytest.approx(25.0)
    assert "50%" in line(row)
    assert "40%" in line(row)


def test_a_pair_that_others_disturbed_unequally_does_not_count(tmp_path):
    """It is shown with a question mark, and leaves the median error alone."""
    from bench.figure import Options

    case = Case("slow", "a.py", ("input_bound",), without=("--fast",))
    planted = Verdict("input_bound", [found("input_bound", gain_ratio=0.5)], 1.0, others=0.2)
    unfair = Row(case, planted, after=Verdict("none", [], 1.02, others=1.4))
    fair = Row(case, planted, after=Verdict("none", [], 0.5, others=0.4))
    assert unfair.error is None
    assert "-2%?" in line(unfair)
    assert fair.error == pytest.approx(0.0)
    told = {figure.key: figure for figure in figures([unfair, fair], Options(tmp_path))}
    assert told["gauntlet_gain"].value == pytest.approx(0.0)


def test_removing_a_cause_undoes_what_planted_it():
    """The arguments of a pair differ by more than repeating what planted the cause."""
    for case in CASES:
        if case.without:
            assert not set(case.without) <= set(case.arguments), case.name


def test_false_findings_are_counted_on_healthy_scripts_only(tmp_path):
    """A warning or an alert on a healthy script is false, a remark is not; wrong verdicts show in figures and table."""
    from bench.figure import Options

    healthy, sick = Case("healthy: a", "a.py"), Case("b", "b.py", ("gc_pauses",))
    rows = [
        Row(healthy, Verdict("none", [found("compute_bound", "info")])),
        Row(healthy, Verdict("plateau", [found("plateau")])),
        Row(healthy, Verdict("none", alerts=["loss_increase"])),
        Row(sick, Verdict("gc_pauses", [found("gc_pauses")]), loaded=Verdict("none")),
    ]
    told = {figure.key: figure for figure in figures(rows, Options(tmp_path, loaded=True))}
    assert told["gauntlet_false"].value == 2.0
    assert "alert loss_increase" in told["gauntlet_false"].beside
    assert told["gauntlet_wrong"].value == pytest.approx(100 / 4)
    assert told["gauntlet_loaded"].beside == "b"
    assert "**" in line(rows[1])
    assert "**" not in line(rows[0])
    assert "verdict" in HEAD


def test_peer_is_right_in_its_own_words():
    """The words of traceml-ai count as ours where they mean the same."""
    assert is_right(Case("a", "a.py", ("input_bound",)), "input_bound")
    assert is_right(Case("healthy: a", "a.py"), "compute_bound")
    assert not is_right(Case("a", "a.py", ("gc_pauses",)), "compute_bound")
