"""Nodes in network, pid and mount namespaces, with clocks of their own, that share nothing but a folder."""

from __future__ import annotations

import time

import numpy as np
import pytest

import stepscope
from bench.simulated_fleet import CLOCK_ERROR, Fleet, FleetPlan, may_simulate, missing, shared_files
from bench.simulated_node import value_of
from stepscope.cli.main import main
from stepscope.sources.fates import fates_of
from stepscope.store import states
from tests.integration.processes import until


@pytest.fixture
def fleet(clean_environment, tmp_path):
    """Return what makes a fleet of which nothing is left after the test."""
    why = may_simulate()
    if why:
        pytest.skip(why)
    made = []

    def make(**plan):
        made.append(Fleet(tmp_path / "fleet", FleetPlan(nodes=2, per_node=3, seconds=0.1, **plan)))
        return made[0]

    yield make
    for one in made:
        one.close()


def values_of(run, rank):
    """Return the values of a rank so far."""
    past = stepscope.open(run)
    series = past.series("value") if "value" in past.names() else None
    return [] if series is None else series.value[series.rank == rank].tolist()


def test_two_nodes_with_clocks_a_minute_apart_record_one_run(fleet, capsys):
    """Every row is read once, no file has two writers, and neither verdict nor order depends on the clocks."""
    job = fleet(steps=40, most_ahead=60.0)
    found = job.play()
    assert found.acknowledged == 6 * 40
    assert (found.missing, found.shared_files, found.problems, found.state) == (0, [], [], "finished")
    assert (found.primary, found.named, found.is_ordered) == ("straggler", job.plan.late, True)
    by_steps = set(found.clock_sources.values()) == {"reference", "steps"}
    assert found.clock_error < (4 * CLOCK_ERROR if by_steps else 2.0)  # a busy machine delays the ends of steps
    assert main(["show", str(job.run)]) == 0
    told = capsys.readouterr().out
    assert "differ by up to 1 min" in told
    assert "2 nodes, none of which came late or went early" in told


def test_a_node_that_is_cut_off_died_and_keeps_what_was_written(fleet, monkeypatch):
    """A node whose power fails leaves all rows that its watcher had written; it died, and the other went on."""
    job = fleet(steps=60)
    job.start()
    job.begin()
    before = until(lambda: (held := values_of(job.run, 5)) and len(held) >= 10 and held, "rows of the second node")
    job.cut_off(1)
    job.finish()
    until(lambda: len(values_of(job.run, 2)) == 60, "the rows of the first node")
    monkeypatch.setattr(states, "LOST_AFTER", 2.0)
    time.sleep(2.0)
    kept = values_of(job.run, 5)
    assert len(before) <= len(kept) < 60
    assert kept == [value_of(5, step) for step in range(len(kept))]
    fates = fates_of(stepscope.open(job.run))
    assert [(fate.host, fate.arrival, fate.departure) for fate in fates] == [("sim000", "", ""), ("sim001", "", "died")]


def test_rows_that_are_lost_or_changed_are_missing():
    """The check of the rows finds one that is not there, is there twice, or has another value."""
    plan = FleetPlan(nodes=1, per_node=2, steps=3)
    whole = [(rank, step, value_of(rank, step)) for rank in range(2) for step in range(3)]

    class Held:
        def __init__(self, rows):
            self.rank, self.step, self.value = (np.array(column) for column in zip(*rows, strict=True))

        def series(self, _name):
            return self

    assert missing(Held(whole), plan) == 0
    assert missing(Held(whole[1:]), plan) == 1
    assert missing(Held([*whole, whole[-1]]), plan) == 1
    assert missing(Held([(0, 0, 5.0), *whole[1:]]), plan) == 1


def test_a_file_that_two_nodes_wrote_is_found(tmp_path):
    """The check of the writers finds a file in the notes of two nodes."""
    for node, paths in (("a", "run/nodes/a\nrun/both\n"), ("b", "run/nodes/b\nrun/both\n")):
        (tmp_path / node).write_text(paths)
    assert shared_files(tmp_path) == ["run/both"]
