"""How gradients thin out from layer to layer, and what DDP says of its reductions."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch, whose gradients are looked at")

from stepscope.integrations.torch.losses import is_look_due, layer_extremes  # noqa: E402 - it needs torch
from stepscope.integrations.torch.reductions import EXPOSED, OFTEN, Reductions  # noqa: E402 - it needs torch


class Notes:
    """A run that keeps what it is told."""

    recording = True

    def __init__(self):
        self.rows, self.events = [], []

    def log(self, row, step=None):
        self.rows.append((step, row))

    def own_event(self, kind, **fields):
        self.events.append((kind, fields))


def network(*factors):
    """Return a model of square layers whose gradients are filled with these values."""
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in factors))
    for layer, factor in zip(model, factors, strict=True):
        layer.weight.grad = torch.full((4, 4), float(factor))
        layer.bias.grad = torch.zeros(4)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_weakest_layer_is_named():
    """The weight with the smallest gradient per element is told with its share of the largest; biases do not count."""
    model, optimizer = network(1e-8, 0.5, 2.0)
    facts = layer_extremes(optimizer, [model])
    assert (facts["layer"], facts["weights"], facts["zero"]) == ("0.weight", 3, 0)
    assert facts["ratio"] == pytest.approx(5e-9)


def test_zero_gradients_are_counted():
    """Exact zeros are no weak gradients but none at all."""
    model, optimizer = network(0.0, 0.0, 1.0)
    facts = layer_extremes(optimizer, [model])
    assert (facts["zero"], facts["layer"], facts["ratio"]) == (2, "2.weight", 1.0)
    assert "ratio" not in layer_extremes(network(0.0, 0.0)[1], [])


def test_no_gradients_say_nothing():
    """Without gradients there is nothing to tell."""
    model = torch.nn.Linear(2, 2)
    assert layer_extremes(torch.optim.SGD(model.parameters(), lr=0.1), [model]) is None


def test_looks_get_rarer():
    """A thousand updates are looked at less than ten times, the first of them early."""
    assert [update for update in range(1, 1001) if is_look_due(update)] == [6, 12, 24, 48, 96, 192, 384, 768]


class Reducing(torch.nn.parallel.DistributedDataParallel):
    """A DDP model that needs no other rank: it only tells times."""

    def __init__(self):
        torch.nn.Module.__init__(self)
        self.told, self.asked = {}, 0

    def _get_ddp_logging_data(self):
        self.asked += 1
        return self.told


@pytest.fixture
def reducing(monkeypatch):
    """A run, the hook, and the model that it asks."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    run, model = Notes(), Reducing()
    roots = type("Roots", (), {"modules": [model, torch.nn.Linear(2, 2)]})()
    return run, Reductions(run, roots), model


def test_exposed_part_of_a_reduction_is_recorded_once(reducing):
    """Of a reduction of 30 ms that the backward pass hides for 10, 20 are waited; what is told twice counts once."""
    run, reductions, model = reducing
    reductions.step_end(0)
    assert run.rows == []
    times = {"backward_comm_time": 30_000_000, "backward_compute_comm_overlap_time": 10_000_000}
    model.told = {"backward_comm_time_start": 1, **times}
    reductions.step_end(1)
    reductions.step_end(2)
    [(step, row)] = run.rows
    assert (step, row[EXPOSED]) == (1, pytest.approx(0.02))


def test_ddp_is_asked_seldom_after_the_beginning(reducing):
    """DDP times one iteration of a hundred: to ask at every look would cost more than it tells."""
    _, reductions, model = reducing
    for step in range(OFTEN + 80):
        reductions.step_end(step)
    assert model.asked == OFTEN + 10


def test_odd_ddp_is_told_and_left_alone(reducing):
    """A DDP whose private numbers have changed does not stop the training."""
    run, reductions, model = reducing
    model.told = {"backward_comm_time_start": 5}
    for step in range(10):
        reductions.step_end(step)
    assert run.rows == []
