"""The real torch, on the processor."""

from __future__ import annotations

import math
import warnings

import pytest

torch = pytest.importorskip("torch")

from stepscope.session.histogram import describe_array  # noqa: E402 - only where torch is
from tests.recorder.rig import Rig  # noqa: E402


def logged(rig):
    return [row["a"] for _, row in rig.rows()]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "int64", "uint8", "bool"])
def test_scalars_of_every_type(rig, dtype):
    """A tensor of one element is the number it holds, whatever its type and shape."""
    for shape in ((), (1,), (1, 1)):
        rig.run.log({"a": torch.ones(shape, dtype=getattr(torch, dtype))})
    assert logged(rig) == [1.0, 1.0, 1.0]
    assert rig.refused == 0


def test_tensor_with_a_gradient(rig):
    """A loss that still has its graph is taken without a warning, and the graph is left as it is."""
    weight = torch.tensor(3.0, requires_grad=True)
    loss = weight * weight
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rig.run.log({"a": loss})
        rig.run.log({"a": loss})
    loss.backward()
    assert logged(rig) == [9.0, 9.0]
    assert weight.grad == 6.0


def test_parameters(rig):
    """A parameter of one element is a number as well."""
    rig.run.log({"a": torch.nn.Parameter(torch.tensor([2.0]))})
    assert logged(rig) == [2.0]


def test_value_at_the_call(rig):
    """An accumulator that changes in place afterwards keeps the value it had."""
    total = torch.zeros(())
    for _ in range(3):
        rig.run.log({"a": total})
        total += 1
    assert logged(rig) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("value", ["torch.ones(3)", "torch.ones(0)", "torch.ones((), device='meta')"])
def test_no_scalars(rig, value):
    """A tensor that is not one number is refused and counted."""
    rig.run.log({"a": eval(value, {"torch": torch})})
    assert (logged(rig), rig.refused) == ([], 1)


def test_non_finite(rig):
    """NaN and infinities are recorded."""
    for value in (math.nan, math.inf, -math.inf):
        rig.run.log({"a": torch.tensor(value)})
    assert [str(value) for value in logged(rig)] == ["nan", "inf", "-inf"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_histogram_of_a_tensor(dtype):
    """A tensor of any type has a histogram."""
    fields = describe_array(torch.arange(10).to(getattr(torch, dtype)), 5)
    assert (fields["count"], fields["min"], fields["max"], sum(fields["counts"])) == (10, 0.0, 9.0, 10)


def test_histogram_of_a_parameter(tmp_path):
    """A tensor with a gradient has a histogram, and keeps its gradient."""
    rig = Rig(tmp_path, 1 << 18)
    weight = torch.nn.Parameter(torch.ones(4))
    rig.run.histogram("w", weight)
    assert rig.events()[0][1]["count"] == 4
    assert weight.requires_grad
