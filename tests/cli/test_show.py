from __future__ import annotations

import contextlib
import json
import math

import numpy as np
import pytest

import stepscope
from stepscope.analysis.first_error.evidence import FirstError, FoldedError
from stepscope.cli.commands.show import RunSheet, flatten
from stepscope.cli.main import main
from stepscope.cli.text.terminal import Paint
from stepscope.core.ring import NO_STEP
from stepscope.core.terminal_text import width_of
from stepscope.store.layout import RunFolder
from stepscope.store.series import Series
from stepscope.store.sinks import SENDING, WAITING, SinkState
from stepscope.views.overview import (
    FINE_POINTS,
    metric,
    metric_names,
    silence,
    step_range,
    step_time,
    throughput,
    trend,
)
from tests.integration.processes import until, wait_until_written

pytestmark = pytest.mark.processes


@contextlib.contextmanager
def recorded(root, **arguments):
    """Record a run; at the end its rows are on disk, however busy the machine is."""
    with stepscope.init(dir=root, **arguments) as run:
        yield run
    wait_until_written(run)


@pytest.fixture
def show(tmp_path, capsys):
    """Return a function that runs the command on the test's own root and returns what it prints."""

    def call(*arguments, code=0):
        assert main(["show", "--dir", str(tmp_path), *arguments]) == code
        captured = capsys.readouterr()
        return captured.err if code else captured.out

    return call


@pytest.fixture
def trained(tmp_path):
    """Return a small finished run with phases, samples, events and a value that is not finite."""
    with recorded(tmp_path, project="mnist", name="first", config={"lr": 0.1, "model": {"layers": 2}}) as run:
        for index, _ in enumerate(run.data(range(8))):
            with run.step(samples=4):
                with run.phase("forward"):
                    run.log({"loss": math.nan if index == 2 else 1.0 / (1 + index), "lr": 1e-3})
                run.log({"memory/peak_bytes": 2.0**30})
        run.event("checkpoint", path="x")
    return run


def test_everything_is_there(show, trained):
    """What the run was, how it went, where its time goes, its metrics and our own cost are shown."""
    text = show(trained.id)
    for part in [
        "first  finished",
        f"{trained.id} in project mnist",
        "last step 7",
        "lr=0.1  model.layers=2",
        "8 steps",
        "forward",
        "samples/s",
        "1 GiB",
        "0 lost",
        "1 checkpoint",
    ]:
        assert part in text


@pytest.mark.parametrize("which", ["id", "prefix", "path", "latest"])
def test_a_run_has_four_names(show, trained, which):
    """A run is named by its id, a unique start of it, its folder, or 'latest'."""
    names = {"id": trained.id, "prefix": trained.id[:-1], "path": str(trained.path), "latest": "latest"}
    assert trained.id in show(names[which])


def test_an_unknown_run_is_an_error(show):
    """A run that is not there is exit code 1 and says where it was looked for."""
    assert "cannot open run 'nope'" in show("nope", code=1)


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_every_line_fits(show, trained, monkeypatch, width):
    """No line is wider than the terminal."""
    monkeypatch.setenv("COLUMNS", str(width))
    assert max(width_of(line) for line in show(trained.id).splitlines()) <= width


def test_phases_sum_to_the_step(trained):
    """The phases' seconds sum to the steps', and their shares to 1."""
    past = stepscope.open(trained.path)
    taken = step_time(past, dict.fromkeys(past.names(), 8), None)
    assert taken["steps"] == 8
    assert sum(phase["seconds"] for phase in taken["phases"]) == pytest.approx(taken["seconds"])
    assert sum(phase["share"] for phase in taken["phases"]) == pytest.approx(1.0)
    assert sum(phase["mean"] for phase in taken["phases"]) == pytest.approx(taken["step"]["mean"])


def test_throughput_is_samples_by_the_seconds_of_their_steps(trained):
    """Samples per second are those of an attempt's steps by the same steps' seconds."""
    past = stepscope.open(trained.path)
    [rate] = throughput(past, dict.fromkeys(past.names(), 8))
    seconds = past.series("step_seconds").value.sum()
    assert rate["samples_per_second"] == pytest.approx(32 / seconds)
    assert rate["steps_per_second"] == pytest.approx(8 / seconds)


def test_rates_stay_inside_an_attempt(show, tmp_path, patient_end):
    """Each attempt has a rate of its own, and a step without samples counts for none."""
    for samples in (2, None):
        with recorded(tmp_path, run_id="again", resume=True) as run:
            for _ in range(3):
                with run.step(samples=samples):
                    run.log(loss=1.0)
    facts = json.loads(show("again", "--json"))
    assert [rate["attempt"] for rate in facts["throughput"]] == [0, 1]
    assert [rate["samples_per_second"] is None for rate in facts["throughput"]] == [False, True]
    assert [rank["rows"] for rank in facts["attempts"]] == [6, 6]


def test_figures_are_those_of_the_reader(show, trained):
    """The table, the JSON and the Python API have the same figures."""
    facts = json.loads(show(trained.id, "--json"))
    [loss] = [metric for metric in facts["metrics"] if metric["name"] == "loss"]
    summary = stepscope.open(trained.path).summary("loss")
    assert {key: loss[key] for key in summary} == summary
    assert loss["nonfinite"] == 1


def test_figures_of_a_long_metric_are_exact(tmp_path):
    """A metric that is read as buckets has the same figures as one that is read point by point."""
    with recorded(tmp_path, run_id="long") as run:
        for number in range(FINE_POINTS + 5000):
            run.log(loss=math.nan if number == 7 else math.sin(number))
    past = stepscope.open(run.path)
    found, summary = metric(past, "loss"), past.summary("loss")
    for key in ("count", "min", "max", "last", "nonfinite"):
        assert found[key] == summary[key]
    assert found["mean"] == pytest.approx(summary["mean"])
    assert found["trend"].count(None) == 1


def test_json_is_strict(show, tmp_path):
    """A value that is not finite is null in JSON, and a list says where and what it was."""
    with recorded(tmp_path, run_id="bad") as run:
        run.log({"a/b~c": -math.inf})
    text = show("bad", "--json")
    facts = json.loads(text, parse_constant=pytest.fail)
    assert facts["metrics"][0]["last"] is None
    assert facts["nonfinite"] == [{"at": "/metrics/0/last", "value": "-inf"}]


def test_non_finite_values_are_shown(show, tmp_path):
    """The table names what is not finite, and counts it."""
    with recorded(tmp_path, run_id="bad") as run:
        run.log({"loss": 1.0})
        run.log({"loss": math.inf})
    [line] = [line for line in show("bad").splitlines() if line.startswith("  loss")]
    assert line.split()[:6] == ["loss", "inf", "1", "1", "1", "1"]


def test_single_metrics_have_every_figure(show, trained):
    """--metric shows these metrics alone, by any spelling, with percentiles."""
    text = show(trained.id, "--metric", "loss", "--metric", "learning_rate")
    assert "p99" in text
    assert "1 of them not finite" in text
    assert "learning_rate  8 points, steps 0 to 7" in text
    assert "Where the time goes" not in text


def test_an_unknown_metric_is_wrong_usage(show, trained):
    """A metric that is not there is exit code 2, with the nearest name."""
    assert "did you mean 'loss'?" in show(trained.id, "--metric", "los", code=2)


@pytest.mark.slow
def test_a_hundred_metrics_are_limited(show, tmp_path):
    """Of a hundred metrics twenty are shown, and the rest is counted; JSON has all."""
    with recorded(tmp_path, run_id="big") as run:
        run.log({f"layer{number}": float(number) for number in range(100)})
    assert "and 80 more" in show("big")
    assert len(json.loads(show("big", "--json"))["metrics"]) == 100


def test_a_run_without_metrics_is_shown(show, tmp_path):
    """A run that logged nothing is shown without a fault."""
    with recorded(tmp_path, run_id="empty"):
        pass
    text = show("empty")
    assert "none recorded" in text
    assert "Where the time goes" not in text


def test_a_running_run_is_shown(show, tmp_path):
    """A run is shown while it is being written."""
    run = stepscope.init(run_id="live", dir=tmp_path)
    try:
        run.log(loss=1.0)
        assert "live  running" in show("live")
    finally:
        run.finish()


def test_text_of_the_run_is_harmless(show, tmp_path):
    """Names, configuration, causes and metrics with escape sequences are printed without them."""
    evil = "\x1b]0;gone\x07\u202e\r"
    run = stepscope.init(run_id="evil", name=evil, config={evil: evil}, dir=tmp_path)
    run.log({evil: 1.0})
    run.event(evil)
    run.finish(RuntimeError(evil))
    wait_until_written(run)
    text = show("evil")
    assert "evil in project" in text
    assert not set(text) & set("\x1b\x07\u202e\r")


def test_damage_is_told(show, trained):
    """What could not be read is listed as a problem."""
    (trained.path / "nodes" / "other.abc-0.json").write_text("torn")
    assert "Problems while reading" in show(trained.id)
    assert "other.abc-0.json" in show(trained.id)


def test_known_metrics_come_first_and_the_machine_last():
    """The table begins with loss and its like, in any spelling, and ends with the machine."""
    names = ["cpu/usage_ratio", "zeta", "phase/data", "lr", "stepscope/rows_total", "alpha", "samples", "loss"]
    assert metric_names(names, {"cpu/usage_ratio"}) == ["loss", "lr", "alpha", "zeta", "cpu/usage_ratio"]


def series(values, rank=0):
    length = len(values)
    ranks = np.full(length, rank, np.int32)
    return Series("x", np.full(length, NO_STEP), np.arange(length, dtype=float), np.array(values), ranks, ranks)


def test_trend_keeps_what_is_not_finite():
    """A trend has a mean for each stretch, and None where one holds a value that is not finite."""
    assert trend(series([0.0, 2.0, math.nan, 1.0, 4.0, 4.0]), 3) == [1.0, None, 4.0]
    assert trend(series([]), 3) == []


def test_large_runs_are_looked_at_from_their_end():
    """Beyond a million steps the time is that of the last million, over all ranks."""

    class Large:
        def series(self, name, points=None):
            return Series("x", np.array([0, 5_000_000]), *[np.zeros(2)] * 2, np.array([0, 1]), np.zeros(2, int))

    assert step_range(Large(), {"step_seconds": 10_000_000}) == (4_500_001, 5_000_000)
    assert step_range(Large(), {"step_seconds": 5}) is None


def test_silence_is_told_before_a_run_counts_as_lost():
    """A watcher that has missed its heartbeats for a while is mentioned."""
    assert (silence(100.0, 105.0), silence(100.0, 120.0), silence(None)) == (None, 20.0, None)


def test_configuration_is_flattened():
    """A nested configuration becomes paths and values."""
    config = {"a": {"b": [1, 2], "c": {}}, "d": "text", "e": None}
    assert list(flatten(config)) == ["a.b=[1, 2]", "a.c={}", "d=text", "e=null"]
    assert list(flatten("plain")) == ["plain"]


def test_ranks_that_went_wrong_come_first(show, trained):
    """Of many ranks the abnormal ones stand on top, and the rest is counted."""
    facts = json.loads(show(trained.id, "--json"))
    [rank] = facts["attempts"]
    others = [{**rank, "rank": number} for number in range(40)]
    others[33] = {**rank, "rank": 33, "state": "killed", "lost": 5}
    text = "\n".join(RunSheet({**facts, "attempts": others}, 100, Paint(), 0.0).lines())
    first = text.partition("Attempts and ranks")[2].splitlines()[2]
    assert first.split()[:3] == ["0", "33", "killed"]
    assert "and 24 more" in text


def test_the_cause_among_many_ranks_is_the_first_error(show, trained):
    """The head of the page names the rank that began it, not the one whose end was seen first."""
    facts = json.loads(show(trained.id, "--json"))
    others = (FoldedError((0,), "RuntimeError: peer", "its peer was gone"),)
    first = FirstError(1, "a", 1.0, "exception", "rank 1: ValueError: bad", (1,), others=others).as_dict()
    facts |= {"state": "failed", "cause": "RuntimeError: peer", "end": {**facts["end"], "first_error": first}}
    text = "\n".join(RunSheet(facts, 100, Paint(), 0.0).lines())
    assert text.splitlines()[1].split() == ["cause", "rank", "1:", "ValueError:", "bad"]


def test_texts_are_shown_with_their_step(tmp_path, show):
    """The newest text of each name stands in the page, with its step; JSON has it whole."""
    with recorded(tmp_path, name="noted") as run:
        for step, words in enumerate(("cold start", "warm\nnow")):
            run.log({"note": words, "loss": 1.0}, step=step)
    until(lambda: len(stepscope.open(run.path).events("log")) == 2, "the texts")
    text = show(run.id)
    assert "Texts" in text
    assert "warm now" in text
    assert "cold start" not in text
    (told,) = json.loads(show(run.id, "--json"))["texts"]
    assert (told["name"], told["text"], told["step"], told["count"]) == ("note", "warm\nnow", 1, 2)


def test_sinks_are_shown_with_how_far_they_are(show, trained, monkeypatch):
    """Each sink has its state, what it lacks and why; a run without sinks has no such section."""
    monkeypatch.setenv("COLUMNS", "100")
    assert "Sinks" not in show(trained.id)
    folder = RunFolder(trained.path)
    known = {"link": "https://ml.example/runs/7"}
    SinkState("a", "mlflow-1", "mlflow", "mlflow", "mlflow+http://h:5000", known, state=SENDING, sent_rows=8).save(
        folder
    )
    late = {"behind_rows": 5, "behind_seconds": 700.0, "why": "\x1b[31mthe connection was refused"}
    SinkState("a", "otlp-2", "otlp", state=WAITING, **late).save(folder)
    text = show(trained.id)
    assert "mlflow  keeping up" in text
    assert "https://ml.example/runs/7" in text
    assert "otlp    not answering  5 rows, 11 min 40 s" in text
    assert "the connection was refused" in text
    assert "\x1b" not in text
    facts = json.loads(show(trained.id, "--json"))
    assert [(sink["name"], sink["behind_rows"]) for sink in facts["sinks"]] == [("mlflow", 0), ("otlp", 5)]
