from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.samplers.nvidia_visible import Device, Instance, order_matters, visible_devices

MIGS = (Instance(0, "MIG-aa11-0", ids=(7, 0)), Instance(1, "MIG-ab22-1", ids=(8, 0)))
DEVICES = (
    Device(0, "GPU-1aaa-0", "H100"),
    Device(1, "GPU-1abb-1", "H100"),
    Device(2, "GPU-2ccc-2", "H100"),
    Device(3, "GPU-3ddd-3", "H100", instances=MIGS),
)
ALL = ((0, None), (1, None), (2, None), (3, None))


@pytest.mark.parametrize(
    ("text", "places"),
    [
        (None, ALL),
        ("", ()),
        ("  ", ()),
        ("2", ((2, None),)),
        ("3, 1", ((3, None), (1, None))),
        ("0,-1,1", ((0, None),)),
        ("-1", ()),
        ("1,9,0", ((1, None),)),
        ("1x,2", ((1, None), (2, None))),
        ("0,0", ()),
        ("GPU-2ccc-2", ((2, None),)),
        ("GPU-2", ((2, None),)),
        ("GPU-1a", ()),
        ("GPU-1ab,GPU-nothing,0", ((1, None),)),
        ("MIG-ab22-1", ((3, 1),)),
        ("MIG-aa", ((3, 0),)),
        ("MIG-a", ()),
        ("MIG-GPU-3ddd-3/8/0", ((3, 1),)),
        ("MIG-GPU-3ddd-3/9/0", ()),
        ("NoDevFiles", ()),
    ],
)
def test_read_as_cuda_reads_it(text, places):
    """Numbers, UUIDs, short forms and MIG names mean what they mean to CUDA; what names nothing ends the list."""
    assert visible_devices(text, DEVICES) == places


@given(st.text("0123456789-,GPUMIabc/ ", max_size=30))
def test_any_text_names_known_places_once(text):
    """Whatever the variable holds, the result is a list of GPUs of the machine, each at most once."""
    places = visible_devices(text, DEVICES)
    assert len(set(places)) == len(places)
    assert {gpu for gpu, _ in places} <= {0, 1, 2, 3}


def test_numbers_of_different_cards_are_a_guess():
    """CUDA numbers by speed where cards differ, unless it is told to go by slot."""
    mixed = (Device(0, "GPU-a", "T4"), Device(1, "GPU-b", "H100"))
    assert order_matters("0", mixed, None)
    assert not order_matters("0", mixed, "PCI_BUS_ID")
    assert not order_matters("GPU-a", mixed, None)
    assert not order_matters(None, mixed, None)
    assert not order_matters("0", DEVICES, None)
