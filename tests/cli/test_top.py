from __future__ import annotations

import json

import pytest

import stepscope
from bench.drawn_runs import sick, trained, write
from stepscope.cli.commands.top import _Newest, line, newest_running
from stepscope.cli.main import build_parser, main
from tests.integration.processes import until
from tests.tui.scenes import machine_scene, run_scene

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with a run that is over."""
    found = tmp_path_factory.mktemp("runs")
    write(found / "demo" / "sick", sick("gpt\x1b[2J small", steps=200))
    return found


def test_a_run_that_is_over_is_one_line_in_a_pipe(root, capsys):
    """Where nothing can be drawn, a finished run is told in one line, without control characters."""
    assert main(["top", "sick", "--dir", str(root)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert "oom-killed  step 199" in printed
    assert "ALERT" in printed
    assert "\x1b" not in printed


def test_json_is_strict_and_whole(root, capsys):
    """`--json` prints an object a look: status, metrics, machine, ranks, alerts; no NaN."""
    assert main(["top", "sick", "--dir", str(root), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert facts["status"]["state"] == "oom-killed"
    assert facts["metrics"]["loss"]["last"] is None
    assert len(facts["ranks"]) == 4
    assert facts["machines"][0]["metrics"]["gpu/0/utilization_ratio"] > 0
    assert facts["alerts"]


@pytest.mark.promise("S2-009")
def test_without_a_run_the_machine_is_shown(tmp_path, capsys):
    """With no run that is running, and with --machine, lines are those of this machine."""
    assert main(["top", "--dir", str(tmp_path), "--count", "2", "--interval", "0.1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["top", "--machine", "--json", "--count", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["machines"][0]["metrics"]["memory/total_bytes"] > 0


def test_a_run_that_is_not_there_is_an_error(tmp_path, capsys):
    """A wrong name is said with what to do."""
    assert main(["top", "absent", "--dir", str(tmp_path)]) == 1
    assert "cannot open run 'absent'" in capsys.readouterr().err


def test_the_newest_running_run_is_followed(tmp_path):
    """A run that is running is found; one that is over is not; a newer one takes over."""
    write(tmp_path / "demo" / "old", trained("old", steps=40))
    assert newest_running(tmp_path) is None
    with stepscope.init(dir=tmp_path, project="demo", name="first") as first:
        first.log({"loss": 1.0})
        until(lambda: newest_running(tmp_path) == first.path, "the first run")
        options = type("Options", (), {"dir": str(tmp_path)})()
        shown = type("Feed", (), {"path": first.path, "scene": run_scene()})()
        newer = _Newest(options)
        assert newer(shown) is None
        second = stepscope.init(dir=tmp_path, project="demo", name="second")
        second.log({"loss": 2.0})
        until(lambda: newest_running(tmp_path) == second.path, "the second run")
        feed = newer(shown)
        assert feed.path == second.path
        feed.close()
        second.finish()


def test_lines_of_a_run_and_of_a_machine():
    """A line has what matters: step, speed, time left, loss, the longest phase, GPUs, and the worst alert."""
    text = line(run_scene())
    for part in ("gpt-small", "running", "step 599/2 000", "4 steps/s", "5 min 50 s left", "loss NaN", "backward 48 %"):
        assert part in text
    assert "ALERT loss_nan" in text
    assert "gpu 1 20 %" in line(machine_scene(), [1])
    assert "gpu 0" not in line(machine_scene(), [1])


@pytest.mark.promise("S2-009")
def test_the_documents_name_runs_the_dashboard():
    """`python -m monitoring.gpu_dashboard --gpu 0 --interval 0.5` is `stepscope top --machine` with these options."""
    from monitoring.gpu_dashboard import main as dashboard

    asked = []
    assert dashboard(["--gpu", "0", "--interval", "0.5"], command=lambda words: asked.append(words) or 0) == 0
    assert asked == [["top", "--machine", "--gpu", "0", "--interval", "0.5"]]
    assert build_parser().parse_args(asked[0]).gpu == [0]
