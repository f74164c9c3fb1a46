"""The loss, the learning rate and the padding of a program that has no line for us."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which is instrumented")

from stepscope.integrations.torch.losses import count_nodes, padding_of  # noqa: E402 - it needs torch
from tests.integrations import torch_rig as tr  # noqa: E402 - it needs torch

F = torch.nn.functional


@pytest.fixture
def rig(tmp_path):
    """A run that listens, as under `stepscope run`."""
    with tr.instrumented(tmp_path) as made:
        made.run.instrument.listen()
        yield made


def values_of(rig, name):
    return [(step, values[name]) for step, values in rig.rows() if name in values]


def loader(batches=3, rows=4):
    return torch.utils.data.DataLoader(torch.ones(batches * rows, 2), batch_size=rows)


def train(rig, batches=3, lr=0.5, accumulate=1):
    """Train on batches and return what each update followed."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    told, total = [], 0.0
    for number, x in enumerate(loader(batches), 1):
        loss = model(x).pow(2).mean()
        loss.backward()
        total += loss.item()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            told, total = [*told, total], 0.0
    return told


def test_loss_is_what_backward_began_from(rig):
    """Each step has the value that its backward pass began from, and the learning rate of its optimizer."""
    told = train(rig)
    found = values_of(rig, "loss")
    assert [value for _, value in found] == pytest.approx(told)
    assert [step for step, _ in found] == [0, 1, 2]
    assert [value for _, value in values_of(rig, "learning_rate")] == [0.5, 0.5, 0.5]


def test_accumulated_losses_add_up(rig):
    """The loss of an update is the sum of what was propagated for it: the function whose gradient is applied."""
    told = train(rig, batches=4, accumulate=2)
    assert [value for _, value in values_of(rig, "loss")] == pytest.approx(told)


def test_scaled_loss_is_told_unscaled(rig):
    """A GradScaler multiplies what backward begins from; what is recorded is the loss itself."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    told = []
    for x in loader():
        loss = model(x).pow(2).mean()
        told.append(loss.item())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert [value for _, value in values_of(rig, "loss")] == pytest.approx(told)


def test_second_optimizer_has_a_loss_of_its_own(rig):
    """Two models with an optimizer each, as a GAN has them, do not mix their losses."""
    first, second = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=lr) for model, lr in ((first, 0.1), (second, 0.2))]
    for x in loader():
        for model, optimizer, goal in zip((first, second), optimizers, (1.0, 5.0), strict=True):
            optimizer.zero_grad()
            (model(x) - goal).pow(2).mean().backward()
            optimizer.step()
    assert len(values_of(rig, "loss")) == len(values_of(rig, "loss/optimizer_1")) == 3
    assert [value for _, value in values_of(rig, "learning_rate/optimizer_1")] == [0.2] * 3


def test_evaluation_has_the_mean_of_its_losses(rig):
    """What torch's loss functions return without gradients during an evaluation is recorded as their mean, once."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    labels = torch.tensor([0, 1, 0, 1])
    criterion, expected = torch.nn.CrossEntropyLoss(), []
    for x in loader():
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            held = [criterion(model(batch), labels).item() for batch in loader(2)]
            summed = F.cross_entropy(model(torch.zeros(4, 2)), labels, reduction="sum").item() / 4
        model.train()
        expected.append(sum([*held, summed]) / 3)
    rig.run.instrument.detach()
    assert [value for _, value in values_of(rig, "evaluation/loss")] == pytest.approx(expected)
    assert F.cross_entropy.__module__ == "torch.nn.functional"
    assert not hasattr(F.cross_entropy, "__wrapped__")


def test_what_the_program_records_is_its_own(rig):
    """A program that logs its loss under any spelling keeps it to itself; the learning rate is still recorded."""
    rig.run.log({"train_loss": 3.0})
    train(rig)
    assert values_of(rig, "loss") == []
    assert len(values_of(rig, "learning_rate")) == 3


def test_loss_that_is_no_number_is_recorded_as_it_is(rig):
    """NaN is a value: it is what the diagnosis looks for."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader(1):
        (model(x).mean() * math.nan).backward()
        optimizer.step()
    [(_, value)] = values_of(rig, "loss")
    assert math.isnan(value)


def test_graph_is_counted_once(rig):
    """The size of the loss's graph and torch's settings are told once."""
    train(rig, batches=10)
    [graph] = tr.events_of(rig, "graph")
    [setup] = tr.events_of(rig, "torch_setup")
    assert graph["complete"]
    assert 3 <= graph["nodes"] <= 10
    assert (setup["device"], setup["threads"]) == ("cpu", torch.get_num_threads())


def test_count_of_nodes_has_a_bound():
    """A huge graph is not walked to its end."""
    x = torch.ones(1, requires_grad=True)
    for _ in range(100):
        x = x + 1
    assert count_nodes(x.grad_fn) == (101, True)
    assert count_nodes(x.grad_fn, 10) == (10, False)


def sequences(*lengths, places=12):
    rows = torch.zeros(len(lengths), places, dtype=torch.long)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = torch.arange(5, 5 + length)
    return rows


@pytest.mark.parametrize(
    ("batch", "share"),
    [
        (sequences(12, 6), 0.25),
        ([sequences(12, 3, 3), torch.zeros(3)], 0.5),
        ({"input_ids": sequences(6, 6), "attention_mask": (sequences(6, 6) > 0).long()}, 0.5),
        (sequences(12, 12), None),
        (torch.rand(4, 12), None),
        (torch.eye(12, dtype=torch.long), None),
        (torch.zeros(4, 12, dtype=torch.long), None),
        (torch.zeros(4, 2, dtype=torch.long), None),
        ("text", None),
        (None, None),
    ],
)
def test_padding_is_told_by_mask_or_by_ends(batch, share):
    """Sequences that end in one same number have padding there; features, one-hot rows and full rows have none."""
    assert padding_of(batch) == (None if share is None else pytest.approx(share))


def test_print_is_logging(tmp_path, monkeypatch, capsys):
    """Time of `print` in a script is charged to logging, and print is itself again afterwards."""
    clock = tr.install(monkeypatch)
    plain = print

    class Slow:
        def __str__(self):
            clock.pass_ms(20)
            return "slow"

    with tr.instrumented(tmp_path) as rig:
        rig.run.instrument.listen()
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in loader(4):
            model(x).mean().backward()
            optimizer.step()
            print(Slow())
    assert [step["logging"] for step in tr.steps_of(rig)] == [20] * 4
    assert print is plain
    assert capsys.readouterr().out == "slow\n" * 4


def test_an_optimizer_made_after_an_update_begins_another_training(rig):
    """As with every fold of a cross-validation; those that are made before the first update belong to one training."""
    torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    train(rig)
    before = [facts["kind"] for _, facts in rig.events()]
    train(rig)
    made = [(step, facts["optimizer"]) for step, facts in rig.events() if facts["kind"] == "optimizer_made"]
    assert "optimizer_made" not in before
    assert made == [(2, "SGD")]
