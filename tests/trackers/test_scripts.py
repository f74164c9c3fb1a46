from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import stepscope.monitor

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def scripts(monkeypatch):
    """The folder of scripts on the path, as the documents put it there."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("monitor_training"), importlib.import_module("performance_monitor")


@pytest.mark.promise("S1-019", "S1-020")
def test_the_documents_modules_export_the_documents_classes(scripts):
    """`monitor_training` and `performance_monitor` give the package's own classes."""
    monitor_training, performance_monitor = scripts
    assert monitor_training.TrainingMonitor is stepscope.monitor.TrainingMonitor
    assert performance_monitor.TrainingMetrics is stepscope.monitor.TrainingMetrics


def test_a_simulation_is_the_demo_with_so_many_steps(scripts):
    """`--simulate --simulate_steps N` runs `stepscope demo --steps N` in the same process."""
    called = []
    code = scripts[0].main(["--simulate", "--simulate_steps", "7"], command=lambda words: called.append(words) or 0)
    assert (code, called) == (0, [["demo", "--steps", "7"]])


@pytest.mark.promise("S1-040", "S1-042")
@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--enable_dashboard"], ["serve"]),
        (["--enable_dashboard", "--dashboard_port", "8081"], ["serve", "--port", "8081"]),
        (["--simulate", "--simulate_steps", "9", "--enable_dashboard"], ["demo", "--steps", "9", "--port", "8080"]),
        (["--simulate", "--enable_dashboard", "--dashboard_port", "0"], ["demo", "--steps", "100", "--port", "0"]),
    ],
)
def test_the_page_is_served(scripts, words, command):
    """`--enable_dashboard` serves the page, of all runs or of the simulated one, at the port that was asked for."""
    called = []
    assert scripts[0].main(words, command=lambda given: called.append(given) or 0) == 0
    assert called == [command]


def test_a_configuration_is_checked_and_handed_on(scripts, tmp_path, capsys):
    """A good file reaches the command; a bad one ends with exit code 2 and what to do."""
    (tmp_path / "good.yaml").write_text("dashboard:\n  port: 8080\n")
    (tmp_path / "bad.yaml").write_text("dashbord:\n  port: 8080\n")
    environ = {}
    run = scripts[0].main
    assert run(["--config", str(tmp_path / "good.yaml")], command=lambda words: 0, environ=environ) == 0
    assert environ == {"STEPSCOPE_CONFIG": str(tmp_path / "good.yaml")}
    assert run(["--config", str(tmp_path / "bad.yaml")], command=lambda words: 0, environ=environ) == 2
    assert "did you mean" in capsys.readouterr().err
