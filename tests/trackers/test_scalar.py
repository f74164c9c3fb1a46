from __future__ import annotations

import decimal
import fractions
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from stepscope.trackers.metrics.scalar import DeviceScalar, scalar_of
from tests.trackers.fakes import Gpu, Stubborn


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1),
        (2.5, 2.5),
        (True, 1),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.array(3.0), 3.0),
        (np.array([4]), 4),
        (decimal.Decimal("0.25"), 0.25),
        (fractions.Fraction(1, 4), 0.25),
    ],
)
@pytest.mark.promise("S0-004")
def test_one_number_is_found_in_any_kind_of_value(value, number):
    """Python, numpy and other numbers are taken, and integers stay integers."""
    assert scalar_of(value) == number
    assert type(scalar_of(value)) is type(number)


@pytest.mark.parametrize("value", ["0.5", b"1", None, [1.0], {}, 1j, np.zeros(2), object(), Stubborn()])
def test_what_holds_no_single_number_is_refused(value):
    """Text, collections, complex numbers and objects that raise give None and no exception."""
    assert scalar_of(value) is None


@pytest.mark.promise("S0-005")
def test_a_device_tensor_is_copied_and_not_read():
    """Taking a GPU tensor does not wait, and a later change in place does not reach the copy."""
    gpu = Gpu()
    accumulator = gpu.tensor(1.0)
    taken = scalar_of(accumulator)
    accumulator.fill_(9.0)
    assert gpu.waits == 0
    assert isinstance(taken, DeviceScalar)
    assert taken.tensor.item() == 1.0


def test_a_device_tensor_of_many_elements_is_refused():
    """A vector on a GPU is neither copied nor read."""
    gpu = Gpu()
    assert scalar_of(gpu.tensor(1.0, shape=(2,))) is None
    assert gpu.waits == 0


def test_nothing_is_copied_while_a_cuda_graph_is_captured(monkeypatch):
    """A copy made then would become part of the graph."""
    cuda = SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert scalar_of(Gpu().tensor(1.0)) is None


@pytest.mark.parametrize("ready", [True, False])
def test_a_value_that_is_still_computed_is_not_waited_for(ready):
    """An array that says that it is not ready (JAX) is kept; one that is ready is read."""
    array = SimpleNamespace(is_ready=lambda: ready, item=lambda: 2.0)
    assert isinstance(scalar_of(array), float if ready else DeviceScalar)


def test_torch_tensors_on_the_cpu_are_read_without_a_warning():
    """A loss with a graph, a one-element vector and integers of torch are taken."""
    torch = pytest.importorskip("torch")
    assert scalar_of(torch.tensor(1.5, requires_grad=True) * 2) == 3.0
    assert scalar_of(torch.tensor([2], dtype=torch.int64)) == 2
    assert scalar_of(torch.tensor(0.5, dtype=torch.bfloat16)) == 0.5
    assert scalar_of(torch.zeros(3)) is None
