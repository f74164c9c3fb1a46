"""Which rank is late, by how much, and where it is."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.sources.rank_table import rank_map, rank_table
from stepscope.store.layout import RunFolder
from tests.exporters.recorded import tell
from tests.fleet import fleet


def test_a_late_rank_is_late_by_its_own_time(tmp_path):
    """Ranks that meet have equal steps: the late one is known by its time before they meet."""
    table = rank_table(fleet(tmp_path, late=3))
    late = table.rows[3]
    assert late.late_seconds == pytest.approx(0.04)
    assert (late.slowest_phase, late.slowest_seconds) == ("data", pytest.approx(0.04))
    assert (late.step_seconds, late.own_seconds) == (pytest.approx(0.2), pytest.approx(0.10))
    assert [row.late_seconds for row in table.rows[:3]] == pytest.approx([0.0] * 3)
    assert table.is_own
    assert table.usual_phases == pytest.approx({"data": 0.01, "forward": 0.05, "backward": 0.08, "communication": 0.06})


def test_without_phases_whole_steps_are_compared(tmp_path):
    """Where no phase was measured, a rank is late by its step time."""
    table = rank_table(fleet(tmp_path, late=1, phases=False))
    assert not table.is_own
    assert table.rows[1].late_seconds == pytest.approx(0.04)


def test_figures_are_of_the_given_steps(tmp_path):
    """A range of steps limits the figures; a rank's newest step stays what it is."""
    table = rank_table(fleet(tmp_path, late=1, behind=5), (10, 19))
    assert table.steps == (10, 19)
    assert (table.rows[1].step, table.rows[1].behind_steps) == (194, 5)
    assert table.rows[1].behind_seconds == pytest.approx(1.0)


def test_a_rank_has_the_gpu_of_its_place_on_the_node(tmp_path):
    """Without further facts the n-th rank of a node uses its n-th GPU; samples are the newest of that node."""
    rows = rank_table(fleet(tmp_path)).rows
    assert [(row.place.gpu, row.place.temperature) for row in rows] == [(0, 70.0), (1, 71.0), (0, 80.0), (1, 81.0)]
    assert [row.place.throttled for row in rows] == [(), (), ("hw thermal",), ()]
    assert rows[0].place.gpu_name == "H100"


def test_coordinates_come_from_events(tmp_path):
    """What a rank said about its place is shown; what the program said by hand counts most."""
    past = fleet(tmp_path)
    folder = RunFolder(past.path)
    tell(folder, "rank_placed", coordinates={"data": 1, "tensor": 0}, source="run.place", local_rank=1)
    tell(folder, "rank_placed", coordinates={"data": 7, "pipeline": 2}, source="device mesh", sequence=8)
    place = rank_table(past).rows[0].place
    assert place.coordinates == {"data": 1, "tensor": 0, "pipeline": 2}
    assert (place.gpu, place.temperature) == (1, 71.0)


def test_the_last_phase_is_that_of_the_newest_event(tmp_path):
    """An event that names a phase says where the rank was."""
    past = fleet(tmp_path)
    tell(RunFolder(past.path), "stalled", phase="data")
    assert [row.last_phase for row in rank_table(past).rows] == ["data", "", "", ""]


def test_a_map_shows_how_late_each_rank_is_in_each_bucket(tmp_path):
    """The map has seconds beyond the median rank, and the usual step beside it."""
    found = rank_map(fleet(tmp_path, late=2), buckets=10)
    assert found.is_difference
    np.testing.assert_allclose(found.values[2], 0.04, atol=1e-9)
    np.testing.assert_allclose(found.values[[0, 1, 3]], 0.0, atol=1e-9)
    np.testing.assert_allclose(found.usual, 0.2)


def test_a_map_of_a_metric_shows_it_as_recorded(tmp_path):
    """A phase or any metric is shown with its unit; one that was never recorded has no buckets."""
    past = fleet(tmp_path)
    found = rank_map(past, "phase/forward", (0, 9), 100)
    assert (found.unit, found.is_difference, found.values.shape) == ("seconds", False, (4, 10))
    assert rank_map(past, "nothing").values.size == 0


def test_a_run_without_steps_has_rows_without_figures(tmp_path):
    """States are known before the first step."""
    table = rank_table(fleet(tmp_path, steps=1), (5, 9))
    assert [row.state for row in table.rows] == ["running"] * 4
    assert table.rows[0].late_seconds is None
    assert table.usual_seconds is None
