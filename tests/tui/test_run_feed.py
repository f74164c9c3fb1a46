from __future__ import annotations

import json

import numpy as np
import pytest

import stepscope
from bench.drawn_console import write_console
from bench.drawn_runs import sick, write
from stepscope.core.console_line import ConsoleLine
from stepscope.store.layout import RunFolder
from stepscope.store.sinks import SENDING, SinkState
from stepscope.tui.reading import answer, command, first_names, opened, request
from stepscope.tui.run_feed import RunFeed
from tests.exporters.recorded import tell
from tests.fleet import fleet
from tests.integration.processes import until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def sick_run(tmp_path_factory):
    """A run that went wrong in every way."""
    return write(tmp_path_factory.mktemp("runs") / "demo" / "sick", sick("gpt", steps=400))


def filled(path):
    """Return the feed of a run with its past."""
    feed = RunFeed(path)
    feed.answered(*opened(answer(stepscope.open(path), feed.wanted())))
    feed.poll()
    return feed


def test_a_finished_run_is_read_whole(sick_run):
    """Curves, phases, machine, ranks, alerts and the end of a run are there after the first answer."""
    scene = filled(sick_run).scene
    value = stepscope.open(sick_run).series("loss").value
    finite = value[np.isfinite(value)]
    loss = scene.curves["loss"].history
    assert (loss.points, loss.lowest, loss.highest) == (len(value), finite.min(), finite.max())
    assert sum(row["nonfinite"] for row in loss.rows()) == len(value) - len(finite)
    assert scene.state == "oom-killed"
    assert {phase.name for phase in scene.phases()} >= {"data", "forward", "backward"}
    assert sum(phase.share for phase in scene.phases()) == pytest.approx(1)
    assert scene.nodes[-1].gpus().keys() == {0, 1, 2, 3}
    assert scene.ranks.keys() == {0, 1, 2, 3}
    assert scene.firing()
    assert not scene.loading
    scene.nodes[-1].reset()
    assert scene.nodes[-1].values


def test_the_console_is_followed(tmp_path):
    """Lines of all ranks come in the order of time, new ones at the next look; choosing a rank reads its own."""
    run = write(tmp_path / "runs" / "demo" / "sick", sick("gpt", steps=4))
    lines = [ConsoleLine(1e9 + at, at % 2, 0, "a", at // 2, "out", f"line {at}") for at in range(6)]
    write_console(run, lines[:4])
    now = [1e9]
    feed = RunFeed(run, lambda: now[0])
    feed.follow_console(None)
    assert [line.text for line in feed.scene.console.lines] == ["line 0", "line 1", "line 2", "line 3"]
    write_console(run, lines)
    feed.follow_console(None)
    assert len(feed.scene.console.lines) == 4
    now[0] += 1
    feed.follow_console(None)
    assert [line.text for line in feed.scene.console.lines][4:] == ["line 4", "line 5"]
    feed.follow_console(1)
    assert [line.text for line in feed.scene.console.lines] == ["line 1", "line 3", "line 5"]


def test_the_first_graphs_are_those_people_know(sick_run):
    """Loss comes first; what only counts up has no graph."""
    assert filled(sick_run).scene.shown[0] == "loss"
    metrics = [{"name": name, "source": "training", "important": False} for name in ("epoch", "a", "b")]
    assert first_names(metrics) == ["a", "b"]


def test_other_metrics_are_read_when_they_are_chosen(sick_run):
    """A metric that is picked asks for its past; the others keep theirs."""
    feed = filled(sick_run)
    feed.show(["loss", "gpu/0/utilization_ratio"])
    asked = feed.wanted()
    assert asked["names"] == ["gpu/0/utilization_ratio"]
    feed.answered(*opened(answer(stepscope.open(sick_run), asked)))
    assert feed.scene.curves["gpu/0/utilization_ratio"].history.points > 0
    assert feed.scene.curves["loss"].history.points > 0
    assert feed.wanted() is None


def test_the_diagnosis_comes_on_request(sick_run):
    """Who asks for a diagnosis gets what `stepscope diagnose` says."""
    feed = filled(sick_run)
    feed.ask_diagnosis()
    feed.answered(*opened(answer(stepscope.open(sick_run), feed.wanted())))
    assert feed.scene.diagnosis["primary"] == stepscope.open(sick_run).diagnose()["primary"]


def test_a_reset_forgets_the_past(sick_run):
    """After a reset graphs are empty."""
    feed = filled(sick_run)
    feed.reset()
    assert feed.scene.curves["loss"].history.points == 0
    assert feed.scene.phases() == []


def test_a_past_that_cannot_be_read_is_said(sick_run):
    """A failure is a note, and following goes on."""
    feed = RunFeed(sick_run)
    feed.failed("no memory")
    feed.poll()
    assert "no memory" in feed.scene.note


def test_every_point_of_a_live_run_is_shown_once(tmp_path):
    """Points that come while the past is read are neither lost nor counted twice."""
    with stepscope.init(dir=tmp_path, project="p") as run:
        path = run.path
        for value in range(50):
            run.log({"loss": float(value)})
        until(lambda: len(stepscope.open(path).points(["loss"])) == 50, "50 rows")
        feed = RunFeed(path)
        asked = feed.wanted()
        for value in range(50, 80):
            run.log({"loss": float(value)})
        until(lambda: len(stepscope.open(path).series("loss")) == 80, "80 rows")
        feed.poll()
        read = opened(answer(stepscope.open(path), asked))
        for value in range(80, 100):
            run.log({"loss": float(value)})
        until(lambda: len(stepscope.open(path).series("loss")) == 100, "100 rows")
        feed.poll()
        feed.answered(*read)
        history = feed.scene.curves["loss"].history
        assert (history.points, history.last) == (100, 99.0)
        run.log({"loss": -1.0})

        def newest():
            feed.poll()
            return history.points == 101

        until(newest, "the row that came last")
        assert (history.lowest, feed.scene.last["loss"]) == (-1.0, -1.0)
        feed.close()


def test_the_reading_process_answers(sick_run):
    """The command that is started prints an archive that holds what was asked."""
    import subprocess

    done = subprocess.run(command(sick_run, request(["loss"])), capture_output=True, check=True, timeout=240)
    facts, columns = opened(done.stdout)
    assert facts["names"] == ["loss"]
    assert json.dumps(facts)
    assert len(columns["points_value"]) + len(columns["blocks_mean"]) > 0


def test_sinks_are_read_again(tmp_path):
    """The state of a sink follows what its sender writes."""
    path = write(tmp_path / "demo" / "sent", sick("gpt", steps=10))
    now = iter(range(100))
    feed = RunFeed(path, clock=lambda: float(next(now)) * 2)
    assert feed.scene.sinks == []
    SinkState("a", "mlflow-0", "mlflow", state=SENDING, sent_rows=7).save(RunFolder(path))
    feed.poll()
    assert [(sink["name"], sink["state"], sink["sent_rows"]) for sink in feed.scene.sinks] == [
        ("mlflow", "keeping up", 7)
    ]
    feed.close()


def test_the_cause_of_a_hang_is_known(tmp_path):
    """The verdict of the watchers names the rank; ranks that go on are not blamed."""
    past = fleet(tmp_path)
    for file in sorted((past.path / "nodes").glob("*.json")):
        text = file.read_text(encoding="utf-8").replace('"stall": ""', '"stall": "hung"')
        file.write_text(text, encoding="utf-8")
    tell(RunFolder(past.path), "hang_verdict", verdict="never_arrived", ranks=[2])
    ranks = RunFeed(past.path).scene.ranks
    assert {number for number, rank in ranks.items() if rank.blame} == {2}
    assert {rank.state for rank in ranks.values()} == {"hung"}
