"""Where a training step ends, in loops of every shape."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which is instrumented")

from stepscope.integrations.torch.instrument import Instrument  # noqa: E402 - it needs torch
from tests.integrations import torch_rig as tr  # noqa: E402 - it needs torch
from tests.recorder.rig import Rig  # noqa: E402 - it needs torch


@pytest.fixture
def clock(monkeypatch):
    return tr.install(monkeypatch)


@pytest.fixture
def rig(tmp_path, clock):
    with tr.instrumented(tmp_path) as made:
        yield made


def net(clock, **spend):
    model = tr.Net(clock, **{"forward": 1, "backward": 1, **spend})
    return model, tr.SlowSGD(model.parameters(), clock, 1)


def update(model, optimizer, x, y):
    optimizer.zero_grad()
    tr.loss_of(model(x), y).backward()
    optimizer.step()


def durations(rig):
    return [step["step"] for step in tr.steps_of(rig)]


def finished(rig):
    """Return the steps once the run has ended."""
    rig.run.instrument.detach()
    return tr.steps_of(rig)


BATCH = torch.ones(2, 4), torch.zeros(2, dtype=torch.long)


def test_a_step_is_a_batch_with_its_waiting(rig, clock):
    """Each fetch after an update ends a step; the wait for a batch belongs to the step that it delays."""
    model, optimizer = net(clock)
    for x, y in tr.loader(tr.Slow(clock, 1, length=10), 4):
        update(model, optimizer, x, y)
    found = tr.steps_of(rig)
    assert [step["data"] for step in found] == [4, 4, 2]
    assert [step["samples"] for step in found] == [4, 4, 2]  # the last one is short
    assert [step["step"] for step in found] == [7, 7, 5]


def test_accumulated_batches_are_one_step(rig, clock):
    """Four batches, one update: one step, with the samples and the waiting of all four."""
    model, optimizer = net(clock)
    for number, (x, y) in enumerate(tr.loader(tr.Slow(clock, 1, length=24), 2)):
        tr.loss_of(model(x), y).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    found = tr.steps_of(rig)
    assert [(step["samples"], step["data"], step["forward"]) for step in found] == [(8, 8, 4)] * 3


def test_two_optimizers_make_one_step(rig, clock):
    """Generator and discriminator are updated in turn: one step per batch, with both in it."""
    (one, first), (two, second) = net(clock), net(clock)
    for x, y in tr.loader(tr.Slow(clock, length=8), 2):
        update(one, first, x, y)
        update(two, second, x, y)
    assert [(step["forward"], step["optimizer"]) for step in tr.steps_of(rig)] == [(2, 2)] * 4


def test_without_a_loader_the_optimizer_ends_the_step(rig, clock):
    """A loop over tensors has as many steps as updates, each as long as its parts."""
    model, optimizer = net(clock)
    for _ in range(5):
        update(model, optimizer, *BATCH)
    assert durations(rig) == [3] * 5


def test_without_a_loader_several_optimizers_are_told_apart(rig, clock):
    """The cycle of three optimizers is learned from its first repetition: from then on a step holds one of each."""
    parts = [net(clock) for _ in range(3)]
    for _ in range(6):
        for model, optimizer in parts:
            update(model, optimizer, *BATCH)
    found = finished(rig)
    assert len(found) == 6
    assert [step["step"] for step in found[2:]] == [9] * 4
    assert sum(step["step"] for step in found) == 6 * 9


def test_batches_that_were_read_beforehand_do_not_hold_up_the_steps(rig, clock):
    """A list made of a loader is no loader any more: every update ends a step."""
    model, optimizer = net(clock)
    batches = list(tr.loader(tr.Slow(clock, length=8), 2))
    for x, y in itertools.chain(batches, batches):
        update(model, optimizer, x, y)
    assert durations(rig) == [3] * 8


def test_many_updates_on_one_batch_are_one_step(rig, clock):
    """A critic that is updated five times per batch makes five updates and one step."""
    model, optimizer = net(clock)
    for x, y in tr.loader(tr.Slow(clock, length=6), 2):
        for _ in range(5):
            update(model, optimizer, x, y)
    assert [step["optimizer"] for step in tr.steps_of(rig)] == [5] * 3


def test_a_loop_that_is_left_ends_its_last_step_there(rig, clock):
    """After `break` the step is over: what comes then does not lengthen it."""
    model, optimizer = net(clock)
    for number, (x, y) in enumerate(tr.loader(tr.Slow(clock, length=8), 2)):
        update(model, optimizer, x, y)
        if number == 1:
            break
    clock.pass_ms(1000)
    assert durations(rig) == [3, 3]
    assert len(finished(rig)) == 2


def test_a_closure_of_lbfgs_is_one_step(rig, clock):
    """An optimizer that evaluates the model several times makes one step, with all of its passes."""
    model, _ = net(clock)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, history_size=2)
    for x, y in tr.loader(tr.Slow(clock, length=4), 2):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = tr.loss_of(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    found = tr.steps_of(rig)
    assert len(found) == 2
    assert all(step["forward"] == step["backward"] > 1 for step in found)


@pytest.mark.parametrize("loader", [True, False])
def test_an_update_that_a_scaler_skips_is_a_step(rig, clock, loader):
    """Gradients that are not finite skip the update, not the step; an event says so."""
    model, optimizer = net(clock)
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("needs a scaler for the CPU (torch 2.3)")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    batches = list(tr.loader(tr.Slow(clock, length=8), 2))
    for number, (x, y) in enumerate(tr.loader(tr.Slow(clock, length=8), 2) if loader else batches):
        optimizer.zero_grad()
        scaler.scale(tr.loss_of(model(x), y)).backward()
        if number == 2:
            model.linear.bias.grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
    found = finished(rig)
    assert len(found) == 4
    assert [step.get("optimizer", 0) for step in found] == [1, 1, 0, 1]
    assert len(tr.events_of(rig, "update_skipped")) == 1


def test_an_optimizer_inside_the_backward_pass_ends_the_step_after_it(rig, clock):
    """Updates by hooks of the parameters, as soon as their gradient is there, are part of one step per pass."""
    model, _ = net(clock)
    optimizers = {parameter: tr.SlowSGD([parameter], clock, 1) for parameter in model.parameters()}
    for parameter, optimizer in optimizers.items():
        parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    for x, y in tr.loader(tr.Slow(clock, length=6), 2):
        tr.loss_of(model(x), y).backward()
    assert [(step["backward"], step["optimizer"]) for step in finished(rig)] == [(1, 2)] * 3


def test_a_step_that_calls_the_one_it_overrides_is_one_step(rig, clock):
    """A subclass and its base both have torch's hooks once both were used; a step that failed is forgotten."""
    model, optimizer = net(clock)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # torch hooks a class where one is made
    for _ in range(5):
        update(model, optimizer, *BATCH)
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    for _ in range(20):
        update(model, optimizer, *BATCH)
    assert durations(rig) == [3] * 5 + [4] + [3] * 19  # the time of the failed one is the next one's


def test_weights_that_are_updated_by_hand_make_steps(rig, clock):
    """Where no optimizer is ever seen a batch with a backward pass is a step, once that is certain."""
    model = tr.Net(clock, forward=1, backward=1)
    for x, y in tr.loader(tr.Slow(clock, length=80), 1):
        model.zero_grad()
        tr.loss_of(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.01 * parameter.grad)
    found = tr.steps_of(rig)
    assert [step["step"] for step in found[1:]] == [2] * 47
    assert sum(step["samples"] for step in found) == 80


def test_steps_of_the_users_own_are_never_doubled(rig, clock):
    """Once the script opens a step itself all steps are the script's, the first one too, and it has the phases."""
    model, optimizer = net(clock)
    for x, y in rig.run.data(tr.loader(tr.Slow(clock, 1, length=8), 2)):
        with rig.run.step(samples=7):
            update(model, optimizer, x, y)
    found = finished(rig)
    assert [step["samples"] for step in found] == [7] * 4
    assert [step["forward"] for step in found] == [1] * 4
    assert [index for index, values in rig.rows() if "step_seconds" in values] == [0, 1, 2, 3]


def test_what_is_logged_belongs_to_the_step_that_it_is_logged_in(rig, clock):
    """In a loop without a line for steps, a value logged in the n-th takes its index; one after an epoch the last."""
    model, optimizer = net(clock)
    number = 0
    for _ in range(2):
        for x, y in tr.loader(tr.Slow(clock, length=4), 2):
            update(model, optimizer, x, y)
            rig.run.log({"number": number})
            number += 1
        rig.run.log({"epoch_loss": 1.0})
    rows = rig.rows()
    assert [(index, values["number"]) for index, values in rows if "number" in values] == [(n, n) for n in range(4)]
    assert [index for index, values in rows if "epoch_loss" in values] == [1, 3]


def test_a_module_that_only_holds_others_passes_its_hooks_on(rig, clock):
    """Networks inside an object that is never called itself, as a Lightning module is, are found after a step."""

    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = torch.nn.ModuleDict({"net": tr.Net(clock, forward=4)})

        def forward(self, x):
            return self.inside["net"](x)

    holder = Holder()
    optimizer = tr.SlowSGD(holder.parameters(), clock)
    for x, y in tr.loader(tr.Slow(clock, length=16), 2):
        update(holder.inside["net"], optimizer, x, y)
    assert [step.get("forward") for step in tr.steps_of(rig)][2:] == [4] * 6


def test_a_wrapper_takes_the_hooks_over(rig, clock):
    """A model that is wrapped after its first steps is one root still: the wrapper."""
    inner, optimizer = net(clock)
    for _ in range(3):
        update(inner, optimizer, *BATCH)
    outer = torch.nn.Sequential(inner)
    for _ in range(20):
        update(outer, optimizer, *BATCH)
    assert rig.run.instrument.roots.modules == [outer]
    assert durations(rig) == [3] * 23


def test_training_in_another_thread_is_followed(rig, clock):
    """Whatever thread updates the weights is the one that trains."""
    import threading

    model, optimizer = net(clock)

    def train():
        for x, y in tr.loader(tr.Slow(clock, length=12), 2):
            update(model, optimizer, x, y)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    found = tr.steps_of(rig)
    assert len(found) >= 5
    assert found[-1]["forward"] == 1


@pytest.mark.promise("S1-014")
@pytest.mark.parametrize(("version", "watched"), [("2.0.1", False), ("1.13.1+cu117", False), ("2.1.0a0", True)])
def test_a_torch_that_is_too_old_is_not_watched_and_that_is_said(tmp_path, monkeypatch, capsys, version, watched):
    """Below the floor that the documentation states no hook is put on, and one line says what to do."""
    monkeypatch.setattr(torch, "__version__", version)
    original = torch.nn.Module.__init__
    instrument = Instrument(Rig(tmp_path).run)
    instrument.attach()
    try:
        assert (torch.nn.Module.__init__ is not original) is watched
        assert capsys.readouterr().err.count(f"cannot watch torch {version}: ") == (not watched)
    finally:
        instrument.detach()
