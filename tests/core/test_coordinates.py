"""Where a rank is in its job, from the environment and from libraries that the program has loaded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.coordinates import MEGATRON, dimension_of, of_environment, of_megatron, of_mesh


def test_variables_of_scripts_and_launchers_are_read():
    """TP_RANK and its like are coordinates; what is no number is not."""
    environ = {"TP_RANK": "3", "DATA_PARALLEL_RANK": "1", "PP_RANK": "x", "EP_RANK": "", "RANK": "9"}
    assert of_environment(environ) == {"tensor": 3, "data": 1}


def test_a_mesh_has_the_coordinates_of_its_names():
    """Known spellings get the usual name, others stay; a rank outside of the mesh has no place in it."""
    mesh = SimpleNamespace(mesh_dim_names=("dp", "tp", "ring"), get_coordinate=lambda: [2, 1, 0])
    assert of_mesh(mesh) == {"data": 2, "tensor": 1, "ring": 0}
    assert of_mesh(SimpleNamespace(mesh_dim_names=("dp",), get_coordinate=lambda: None)) == {}
    assert of_mesh(SimpleNamespace(mesh_dim_names=None, get_coordinate=lambda: [0])) == {}


@pytest.mark.parametrize("ready", [True, False])
def test_megatron_is_asked_once_its_groups_are_set_up(ready):
    """Before that, and without Megatron, nothing is known."""
    state = SimpleNamespace(
        model_parallel_is_initialized=lambda: ready,
        get_data_parallel_rank=lambda: 4,
        get_pipeline_model_parallel_rank=lambda: 1,
    )
    assert of_megatron({MEGATRON: state}) == ({"data": 4, "pipeline": 1} if ready else {})
    assert of_megatron({}) == {}


@given(st.text(), st.dictionaries(st.text(), st.text()))
def test_any_names_are_taken(name, environ):
    """Odd names and values break nothing."""
    assert isinstance(dimension_of(name), str)
    assert all(isinstance(at, int) for at in of_environment(environ).values())
