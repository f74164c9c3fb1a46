"""Coordinates from torch's device mesh."""

from __future__ import annotations

import os

import pytest

from stepscope.core.after_import import AfterImport
from stepscope.integrations.torch.patches import Patches

torch = pytest.importorskip("torch", reason="needs torch")

from stepscope.integrations.torch.places import MeshPlaces  # noqa: E402 - after the skip


class Told:
    """A run that keeps its events."""

    def __init__(self):
        self.events = []

    def own_event(self, kind, **fields):
        self.events.append((kind, fields))


@pytest.fixture
def group(tmp_path, monkeypatch):
    """A process group of this process alone."""
    monkeypatch.setattr(os, "environ", {**os.environ, "RANK": "0", "WORLD_SIZE": "1"})
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_a_named_mesh_places_the_rank(group):
    """The coordinates in a mesh are recorded at the next examined step, once; the class is left as it was."""
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    run, patches, imports = Told(), Patches(), AfterImport()
    before = DeviceMesh.__init__
    places = MeshPlaces(run)
    places.attach(patches, imports)
    init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    places.step_end(7)
    places.step_end(8)
    patches.restore()
    assert DeviceMesh.__init__ is before
    facts = {"step": 7, "coordinates": {"data": 0, "tensor": 0}, "source": "torch"}
    assert run.events == [("rank_placed", facts)]


def test_a_mesh_of_another_kind_does_not_stop_the_program():
    """An error in reading a mesh is counted and reported, never raised."""
    run = Told()
    places = MeshPlaces(run)

    class Odd:
        def get_coordinate(self):
            raise RuntimeError("no group")

        mesh_dim_names = ("dp",)

    places._noticing(lambda mesh: None)(Odd())
    places.step_end(1)
    assert [kind for kind, _ in run.events] == ["measurement_failed"]
