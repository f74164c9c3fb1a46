from __future__ import annotations

import gc
import math
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - only where torch is

import stepscope  # noqa: E402
from stepscope.integrations.numerics.measurements import Numerics  # noqa: E402
from stepscope.integrations.torch.instrument import Instrument  # noqa: E402
from stepscope.session.opening import init  # noqa: E402
from tests.recorder.rig import Rig  # noqa: E402
from tests.session.conftest import started  # noqa: E402, F401 - a fixture


def test_connected_to_the_instrument(tmp_path):
    """An unchanged training loop has its gradients, layers, activations and memory at the steps they belong to."""
    rig = Rig(tmp_path, 1 << 22)
    instrument = Instrument(rig.run, math.inf)
    numerics = Numerics(rig.run, 1e9, layers=["head"], modules=["act"])
    instrument.attach()
    try:
        model = nn.Sequential()
        model.add_module("body", nn.Linear(4, 8))
        model.add_module("act", nn.ReLU())
        model.add_module("head", nn.Linear(8, 1))
        instrument.measure(numerics)
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
    found = {}
    for step, row in rig.rows():
        for name, value in row.items():
            found.setdefault(name, {})[step] = value
    assert [found["grad_norm"][step] for step in range(25)] == pytest.approx(expected)
    assert list(found["grad_norm/head"]) == [0, 18]
    assert all(0 < norm < expected[step] for step, norm in found["grad_norm/head"].items())
    assert "grad_norm/body" not in found
    assert found["activation_zero_ratio/act"]
    assert found["memory/resident_bytes"]
    assert found["update_ratio"]
    assert {event["kind"] for _, event in rig.events()} <= {"instrumentation"}
    assert rig.refused == 0


@pytest.mark.parametrize("clips", [True, False])
@pytest.mark.parametrize("budget", [0.01, math.inf])
def test_values_belong_to_the_step_they_were_taken_in(tmp_path, clips, budget):
    """Thinned or not, a norm and what the program logs before the update have the index of their step."""
    rig = Rig(tmp_path, 1 << 22)
    instrument = Instrument(rig.run, budget)
    instrument.attach()
    instrument.measure(Numerics(rig.run, 1e9))
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    try:
        for number in range(600):
            (weight * (number + 1)).sum().backward()
            if clips:
                torch.nn.utils.clip_grad_norm_([weight], 1e9)
            rig.run.log(number=number)
            optimizer.step()
            optimizer.zero_grad()
    finally:
        instrument.detach()
    rows = list(rig.rows())
    assert [step for step, row in rows for name in row if name == "number"] == list(range(600))
    norms = [(step, row["grad_norm"]) for step, row in rows if "grad_norm" in row]
    assert [norm for _, norm in norms] == [step + 1 for step, _ in norms]
    assert len(norms) > 2


@pytest.mark.usefixtures("started")
def test_the_documents_keys_choose_the_layers(tmp_path):
    """`track_gradients` and `gradient_monitoring.track_layers` track the layers whose names hold one of the parts."""
    path = tmp_path / "stepscope.yaml"
    path.write_text("track_gradients: true\ngradient_monitoring:\n  track_layers: [encoder, head]\n")
    run = init(dir=tmp_path, config_file=path)
    model = nn.Sequential()
    for name in ("encoder", "middle", "head"):
        model.add_module(name, nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.watch(model, optimizer)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    run.finish()
    layers = {name.removeprefix("grad_norm/") for name in stepscope.open(run.path).names() if "grad_norm/" in name}
    assert layers == {"encoder", "head"}


def test_a_model_that_the_program_drops_is_gone(tmp_path):
    """Whatever is measured of it, a model, its parameters and its optimizer live no longer than without us."""
    rig = Rig(tmp_path, 1 << 22)
    instrument = Instrument(rig.run, math.inf)
    instrument.attach()
    instrument.measure(Numerics(rig.run, 1e9, layers=[""], modules=["0"], parameters=True, flops=True))

    def trial():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(25):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        return [weakref.ref(each) for each in (model, optimizer, model[0].weight)]

    try:
        references = trial() + trial()
        gc.collect()
        assert [reference() for reference in references] == [None] * 6
    finally:
        instrument.detach()
