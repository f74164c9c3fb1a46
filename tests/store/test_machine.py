from __future__ import annotations

import json

import pytest

from stepscope.core.vocabulary import Metric
from stepscope.store.machine import MachineDescription, declared, read_machines
from stepscope.store.reader import Past
from tests.store.recorded import make_folder

POWER = Metric("gpu/*/power_watts", "watts", "gauge", "Power.")
NEW = Metric("lake/*/depth_metres", "metres", "gauge", "Depth of a lake.")


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "run")


def test_a_description_comes_back(folder):
    """What a watcher wrote of its machine is read as it was."""
    machine = MachineDescription("host.1", 2, (POWER, NEW), {"nvidia": "no driver; install one"}, {"gpu/0": "H100"})
    machine.save(folder)
    assert read_machines(folder) == ([machine], [])


def test_metadata_travel_with_the_run(folder):
    """A run declares names that no vocabulary has; what it says of a name goes first."""
    MachineDescription("host.1", 0, (NEW,)).save(folder)
    past = Past(folder)
    assert past.metric("lake/3/depth_metres") == NEW
    assert past.metric("lake/3/4/depth_metres") is None
    assert past.metric("loss").help == "Training loss."


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"node": 1}', '{"node": "a", "attempt": 0, "metrics": [[]]}', "[" * 9999]
)
def test_a_damaged_description(folder, text):
    """A file that describes nothing is named as a problem, and the run is read without it."""
    (folder.path / "nodes" / "a-0.machine").write_text(text)
    machines, problems = read_machines(folder)
    assert (machines, len(problems)) == ([], 1)
    assert Past(folder).machines() == []


def test_declared_by_pattern():
    """A star stands for one part of a name and no more."""
    machine = MachineDescription("a", 0, (POWER,))
    assert declared([machine], "gpu/0/power_watts") == POWER
    assert declared([machine], "gpu/power_watts") is None
    assert declared([], "loss") is None


def test_the_file_is_json(folder):
    """The description is plain JSON, beside the node's file."""
    MachineDescription("a", 0, (POWER,)).save(folder)
    assert json.loads((folder.path / "nodes" / "a-0.machine").read_text())["metrics"] == [list(POWER)]
