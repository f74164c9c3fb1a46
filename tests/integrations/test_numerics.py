from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - only where torch is

from stepscope.integrations.numerics import Numerics  # noqa: E402
from stepscope.integrations.torch import Instrument  # noqa: E402
from tests.recorder.rig import Rig  # noqa: E402


def test_connected_to_the_instrument(tmp_path):
    """An unchanged training loop has its gradients, layers, activations and memory at the steps they belong to."""
    rig = Rig(tmp_path, 1 << 22)
    instrument = Instrument(rig.run)
    numerics = Numerics(rig.run, 1e9, layers=["head"], modules=["act"])
    instrument.attach()
    try:
        model = nn.Sequential()
        model.add_module("body", nn.Linear(4, 8))
        model.add_module("act", nn.ReLU())
        model.add_module("head", nn.Linear(8, 1))
        numerics.connect(instrument, lambda: instrument.roots.modules)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        instrument.watch(model, optimizer)
        expected = []
        for _ in range(25):
            optimizer.zero_grad(set_to_none=True)
            model(torch.randn(16, 4)).pow(2).mean().backward()
            expected.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)))
            optimizer.step()
    finally:
        instrument.detach()
        numerics.close()
    found = {}
    for step, row in rig.rows():
        for name, value in row.items():
            found.setdefault(name, {})[step] = value
    assert [found["grad_norm"][step] for step in range(25)] == pytest.approx(expected)
    assert 0 < found["grad_norm/head"][10] < expected[10]
    assert "grad_norm/body" not in found
    assert found["activation_zero_ratio/act"]
    assert found["memory/resident_bytes"]
    assert found["update_ratio"]
    assert {event["kind"] for _, event in rig.events()} <= {"instrumentation"}
    assert rig.refused == 0
