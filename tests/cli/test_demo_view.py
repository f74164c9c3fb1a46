from __future__ import annotations

import io

import numpy as np
import pytest

from stepscope.cli.demo.progress import DemoProgress, DemoRun, MetricColumn, columns_of, happenings, progress
from stepscope.cli.demo.text import RunLines, one_line, summary
from stepscope.cli.text.terminal import is_screen
from stepscope.store.points import Points

STEPS = 200


def column(values, seq=None, step=None):
    values = np.asarray(values, float)
    seq = np.arange(len(values)) if seq is None else np.asarray(seq)
    step = seq if step is None else np.asarray(step)
    return MetricColumn(seq, step, 1000.0 + step * 0.1, values)


def recorded(**changes):
    """Return a run of 200 steps of 100 ms, half of it forward, with a spike and an evaluation."""
    loss = np.geomspace(2.0, 0.2, STEPS)
    loss[120] = 50.0
    data = np.full(STEPS, 0.02)
    data[-25:] = 0.08
    columns = {
        "step_seconds": column(np.full(STEPS, 0.1)),
        "samples": column(np.full(STEPS, 32)),
        "phase/other": column(np.full(STEPS, 0.03)),
        "phase/forward": column(np.full(STEPS, 0.05)),
        "phase/data": column(data),
        "phase/evaluation": column([0.5, 0.5], seq=[100, 180]),
        "loss": column(loss),
        "accuracy": column(np.linspace(0.1, 0.9, STEPS)),
        "process/memory_bytes": column(100 * 2**20 + np.arange(STEPS) * 2**17),
        "stepscope/rows_total": column([400.0]),
        "stepscope/log_seconds": column([5e-6]),
        "stepscope/drops_total": column([0.0]),
    }
    events = [
        {"kind": "planted", "what": "loss spike", "step": 120, "why": "bad batch"},
        {"kind": "planted", "what": "evaluation", "step": 99, "why": "held-out"},
        {"kind": "planted", "what": "evaluation", "step": 179, "why": "held-out"},
        {"kind": "histogram", "name": "w", "step": 1},
    ]
    return DemoRun({**columns, **changes}, events, 400)


def test_phases_are_means_of_the_last_steps():
    """Phases are averaged over the last 50 steps, absent ones as 0, in the order in which a step runs."""
    found = progress(recorded()).phases
    assert list(found) == ["data", "forward", "evaluation", "other"]
    assert found["data"] == pytest.approx(0.5)
    assert found["evaluation"] == pytest.approx(0.1)


def test_rates_come_from_the_steps():
    """Rates come from the duration of steps."""
    shown = progress(recorded())
    assert (shown.steps, shown.total) == (STEPS, 400)
    assert shown.rates == (pytest.approx(10), pytest.approx(320))
    assert shown.elapsed == pytest.approx(20)


def test_curves_know_their_best():
    """The best loss is the lowest finite one, the best accuracy the highest, each with its step."""
    values = np.linspace(1, 0.5, STEPS)
    values[7] = np.nan
    shown = progress(recorded(loss=column(values)))
    assert (shown.curves["loss"].best, shown.curves["loss"].best_step) == (0.5, STEPS - 1)
    assert shown.curves["accuracy"].best == pytest.approx(0.9)


def test_cost_is_a_share_of_the_steps():
    """The cost is the time of all rows by the time of all steps."""
    cost = progress(recorded()).cost
    assert (cost.rows, cost.drops) == (400, 0)
    assert cost.share == pytest.approx(400 * 5e-6 / 20)


def test_equal_events_are_one():
    """Events of one subject are one happening with a count, at its last step; histograms are none."""
    found = happenings(recorded().events)
    assert [(one.label, one.step, one.count) for one in found] == [("loss spike", 120, 1), ("evaluation", 179, 2)]


def test_empty_run_has_a_progress():
    """A run that has recorded nothing yet can be shown."""
    assert progress(DemoRun({})) == DemoProgress()


def test_only_the_last_attempt_of_the_first_rank_counts():
    """Points of other ranks and of earlier attempts are left out."""
    count = 3
    points = Points(
        names=["loss"],
        name=np.zeros(count, np.int32),
        rank=np.array([0, 0, 1], np.int32),
        attempt=np.array([0, 1, 1], np.int32),
        seq=np.arange(count),
        step=np.arange(count),
        time=np.arange(count),
        value=np.array([1.0, 2.0, 3.0]),
        ns=np.zeros(count, np.int64),
    )
    assert columns_of(points)["loss"].value.tolist() == [2.0]
    assert columns_of(Points.empty()) == {}


def test_text_of_a_run_cannot_act():
    """Control characters in the text of an event do not reach the terminal."""
    stream = io.StringIO()
    run = recorded()
    run.events.append({"kind": "planted", "what": "x\x1b[2J", "step": 3, "why": "\x1b]0;y\x07"})
    RunLines(stream).show(progress(run))
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(("environ", "expected"), [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({}, False)])
def test_dumb_terminals_get_lines(environ, expected):
    """A terminal that cannot move its cursor, and a pipe, are not drawn on."""
    assert is_screen(Terminal(), environ) == expected
    assert not is_screen(io.StringIO(), environ)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_lines_are_few():
    """Plain output has one line for each event and one for every five seconds of the run."""
    stream = io.StringIO()
    lines = RunLines(stream)
    for _ in range(3):
        lines.show(progress(recorded()))
    written = stream.getvalue().splitlines()
    assert len(written) == 3
    assert written[-1] == one_line(progress(recorded()))
    assert "step 200/400  10 steps/s  loss 0.2  accuracy 90 %" in written[-1]


def test_summary_says_what_was_planted_and_what_shows():
    """The summary has the evidence for each planted fault, the time per phase, and what recording cost."""
    run = recorded()
    text = "\n".join(f"{label} {text}" for label, text in summary(run, progress(run)))
    assert "stopped after 200 steps in 20 s" in text
    assert "step 120: loss 50.000, 0.5" in text
    assert "delays the next step by 500 ms" in text
    assert "forward      50.0 %" in text
    assert "400 rows" in text
