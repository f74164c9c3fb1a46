from __future__ import annotations

import pytest

from bench.page_growth import Reading, growth, slope
from bench.serving import many_runs
from bench.viewers import Aim, TensorBoard


def reading(seconds, heap):
    """Return a reading of so many bytes."""
    return Reading(seconds, heap, 0, {})


def test_growth_is_the_slope_after_the_first_minutes():
    """What fills up at first does not count, what grows then does, told for ten minutes."""
    filling = [reading(at, 100 * min(at, 120)) for at in range(0, 601, 20)]
    assert growth(filling, lambda one: one.heap) == 0
    leaking = [reading(at, 1000 + 2 * at) for at in range(0, 601, 20)]
    assert growth(leaking, lambda one: one.heap) == pytest.approx(1200)


def test_odd_readings_do_not_matter():
    """A reading that met an answer on its way changes nothing."""
    assert slope([(at, 5.0 if at % 5 else 900.0) for at in range(1, 40)]) == 0


def test_tensorboard_is_given_the_same_runs(tmp_path):
    """Every run becomes a folder of event files, those of equal runs too, and TensorBoard reads the same points."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    many_runs(tmp_path / "runs", 3, 50)
    viewer = TensorBoard(tmp_path / "peer")
    viewer.write(tmp_path / "runs")
    folders = sorted((tmp_path / "peer" / "logs").iterdir())
    assert len(folders) == 3
    events = accumulator.EventAccumulator(str(folders[-1]), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    found = events.Tags()
    assert "loss" in {*found["scalars"], *found["tensors"]}


def test_answers_of_the_peers_are_counted(tmp_path):
    """Each peer's own answer says how many runs it lists."""
    assert TensorBoard(tmp_path).listed(b'["a", "b"]') == 2
    assert Aim(tmp_path).listed(b'{"num_runs": 3, "num_experiments": 1}') == 3
