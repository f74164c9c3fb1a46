"""The one definition of the speed of a run."""

from __future__ import annotations

import pytest

import stepscope
from stepscope.views.pace import StepPace, pace_of
from stepscope.views.rates import StepRates, StepTotals, rates
from tests.exporters.recorded import make_run, points_of, seal_points


def test_steps_that_come_later_are_counted_once(tmp_path):
    """A screen that follows a run has, after each look, what a reader of the whole run has."""
    folder = make_run(tmp_path)
    parts = [points_of({"step_seconds": [0.5, 0.25], "samples": [4.0, 4.0]}, first=first) for first in (0, 2)]
    seal_points(folder, parts[0])
    pace = pace_of(stepscope.open(folder.path))
    assert pace.rates() == StepRates(2 / 0.75, 8 / 0.75)
    for _ in range(2):
        pace.take(parts[0])
        pace.take(parts[1])
    assert pace.places()[0].totals == StepTotals(4, 1.5, 16.0, 4)
    assert StepPace(pace.places()).rates() == StepRates(4 / 1.5, 16 / 1.5)


def test_steps_times_samples_are_samples():
    """Steps per second times the samples of a step are samples per second, also where some steps do not tell them."""
    [steps, samples] = rates([StepTotals(10, 2.0, 90.0, 9)])
    assert (steps, samples) == (5.0, pytest.approx(5.0 * 10))
    both = rates([StepTotals(10, 2.0, 100.0, 10), StepTotals(10, 2.5, 100.0, 10)])
    assert both == StepRates(4.5, pytest.approx(90.0))


@pytest.mark.parametrize("ranks", [[], [StepTotals()], [StepTotals(3, 0.0)]])
def test_no_step_is_no_rate(ranks):
    """What cannot be told is None, never 0."""
    assert rates(ranks) == StepRates(None, None)
