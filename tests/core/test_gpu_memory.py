from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.gpu_memory import MAX_GPUS, GpuMemory, by_gpu, index_of, total_in_use
from stepscope.core.vocabulary import GIB, MIB

ROW = {"gpu_index": 1, "memory_used_mb": 22500.0, "memory_total_mb": 24576.0, "memory_percent": 91.5}
SIZES = st.floats(0, 1e9) | st.integers(0, 10**9)
JUNK = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.just("memory_used_mb"), inner),
)


@pytest.mark.promise("X-07")
@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (512.0, {0: 512 * MIB}),
        ({"gpu_0": {"memory_allocated": 100, "memory_reserved": 200}, "gpu_1": 7}, {0: 200 * MIB, 1: 7 * MIB}),
        ({1: {"memory_used_mb": 3.5}, 0: {"memory_used_bytes": 10}}, {0: 10, 1: 3.5 * MIB}),
        ({"0": 1, "cuda:2": 2, "GPU3": 3}, {0: 1 * MIB, 2: 2 * MIB, 3: 3 * MIB}),
        ([1, {"allocated_gb": 2}, None], {0: 1 * MIB, 1: 2 * GIB}),
        (ROW, {1: 22500 * MIB}),
        ([ROW, {**ROW, "gpu_index": 0}], {0: 22500 * MIB, 1: 22500 * MIB}),
        ({"memory_allocated": np.float32(2)}, {0: 2 * MIB}),
        (None, {}),
        ({}, {}),
    ],
    ids=repr,
)
def test_every_shape_of_the_documents_is_bytes_by_gpu(shape, expected):
    """A number, a mapping by name or index, a list and a row of a file all give bytes by index, in order."""
    found = by_gpu(shape)
    assert {index: memory.in_use for index, memory in found.items()} == expected
    assert list(found) == sorted(found)


def test_the_share_is_of_the_capacity():
    """The used ratio divides by the device's capacity, and is unknown without it; MB means 2**20 bytes."""
    assert by_gpu(ROW)[1].used_ratio == pytest.approx(0.91552734375)
    assert by_gpu({"gpu_0": {"memory_allocated": 5, "memory_reserved": 0}})[0].used_ratio is None
    assert GpuMemory(used=1.0, total=0.0).used_ratio is None


def test_one_number_for_those_who_want_one():
    """The sum counts what is known, and is unknown without any."""
    assert total_in_use({"gpu_0": 1, "gpu_1": {"memory_used_mb": 2}, "gpu_2": "?"}) == 3 * MIB
    assert total_in_use({}) is None
    assert total_in_use(4096, unit=1.0) == 4096


@pytest.mark.parametrize("key", [True, "gpu", "gpu_0x", "loss", 1.5, -1, MAX_GPUS, None, ("gpu_0",)])
def test_what_names_no_gpu_is_no_index(key):
    """Booleans, other words, fractions, negative and absurd numbers are no GPU."""
    assert index_of(key) is None


@pytest.mark.slow
@given(JUNK)
def test_nothing_raises_and_every_figure_is_a_size(shape):
    """Whatever is given, the answer has indices and finite sizes that are not negative."""
    for index, memory in by_gpu(shape).items():
        assert 0 <= index < MAX_GPUS
        assert all(value is None or (math.isfinite(value) and value >= 0) for value in memory)


@given(st.dictionaries(st.integers(0, 15), SIZES))
def test_shapes_of_one_thing_agree(sizes):
    """The same sizes under indices, names and as a list of rows give the same answer."""
    expected = by_gpu(sizes)
    assert {index: memory.in_use for index, memory in expected.items()} == {
        index: size * MIB for index, size in sorted(sizes.items())
    }
    assert by_gpu({f"gpu_{index}": {"memory_used_mb": size} for index, size in sizes.items()}) == expected
    assert by_gpu([{"gpu_index": index, "memory_used": size} for index, size in sizes.items()]) == expected
