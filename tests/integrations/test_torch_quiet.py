"""Steps that nobody measures are counted by hooks in C, or by their twins in Python: the same steps either way."""

from __future__ import annotations

import threading
from pathlib import Path
from types import FunctionType

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which is instrumented")

from stepscope.integrations.torch import budget as torch_budget  # noqa: E402 - it needs torch
from stepscope.integrations.torch.data import ITERATOR  # noqa: E402 - likewise
from stepscope.recorder import native  # noqa: E402 - likewise
from tests.integrations import torch_rig as tr  # noqa: E402 - likewise

MODULE = native.available()
BATCHES = 600
"""Enough for stretches of unmeasured steps, and for their ends."""


@pytest.fixture(params=["C", "Python"])
def language(request, monkeypatch):
    if request.param == "C" and MODULE is None:
        pytest.skip("the hot path in C was not built here")
    was = native.is_used()
    native.use(MODULE if request.param == "C" else None)
    monkeypatch.setattr(torch_budget, "OPENING_NS", 0)
    yield request.param
    native.use(MODULE if was else None)


@pytest.fixture
def rig(tmp_path, language):
    with tr.instrumented(tmp_path, budget=1e-6) as made:
        assert (type(ITERATOR.__next__).__name__ == "Hook") is (language == "C")
        yield made


class Model(torch.nn.Linear):
    """A layer with its optimizer, which knows in how many of its updates the hooks were hushed."""

    def __init__(self, rig):
        super().__init__(2, 1)
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        self.timeline, self.hushed = rig.run.instrument.timeline, 0

    def learn(self, x):
        self(x).sum().backward()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.hushed += self.timeline.hushed


def loader(items, size, **options):
    return torch.utils.data.DataLoader(items, batch_size=size, **options)


def train(model, batches):
    for x in batches:
        model.learn(x)
        model.update()


def samples(rig):
    rig.run.instrument.detach()
    return [step.get("samples") for step in tr.steps_of(rig)]


def test_every_step_is_counted_with_its_samples(rig):
    """Of 601 batches, the last one short, every one is a step with its samples, measured or not."""
    model = Model(rig)
    train(model, loader(torch.ones(2 * BATCHES + 1, 2), 2))
    assert samples(rig) == [2] * BATCHES + [1]
    assert model.hushed > BATCHES / 2


def test_accumulated_batches_are_one_step(rig):
    """Three batches, one update: one step with the samples of all three."""
    model = Model(rig)
    for number, (x, _) in enumerate(loader([(torch.ones(2), 0)] * 2 * BATCHES, 2)):
        model.learn(x)
        if number % 3 == 2:
            model.update()
    assert samples(rig) == [6] * (BATCHES // 3)
    assert model.hushed > BATCHES / 6


def test_batches_of_any_kind_are_counted(rig):
    """Of nested lists the first tensor counts, a dict by its own rules, and what has no length has no samples."""
    model, ones = Model(rig), torch.ones(4, 2)
    for kind in (None, [(ones, "x"), 1], {"x": ones}):
        train(model, (ones for _ in loader([kind] * BATCHES, None, collate_fn=lambda item: item)))
    assert samples(rig) == [None] * BATCHES + [4] * 2 * BATCHES


def test_an_error_of_the_dataset_goes_on(rig):
    """It reaches the program as it was raised, and the steps before it are kept."""

    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return BATCHES

        def __getitem__(self, index):
            if index == BATCHES - 1:
                raise KeyError("no such file")
            return torch.ones(2)

    model = Model(rig)
    with pytest.raises(KeyError, match="no such file"):
        train(model, loader(Broken(), 1))
    assert samples(rig) == [1] * (BATCHES - 1)


def test_evaluations_and_other_threads_are_no_steps(rig):
    """Neither batches without gradients in between, nor those of another thread, change what is counted."""
    model = Model(rig)

    def elsewhere():
        for _ in loader(torch.ones(5, 2), 1):
            pass

    for number, x in enumerate(loader(torch.ones(BATCHES, 2), 1)):
        model.learn(x)
        model.update()
        if number % 100 == 60:
            with torch.no_grad():
                for batch in loader(torch.ones(4, 2), 1):
                    model(batch)
        if number % 100 == 30:
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
    assert samples(rig) == [1] * BATCHES


def test_torch_is_as_it_was_after_the_run(rig):
    """When the hooks are off, its functions are its own."""
    rig.run.instrument.detach()
    for function in (ITERATOR.__next__, torch.optim.Optimizer.zero_grad):
        assert type(function) is FunctionType
        assert not hasattr(function, "__wrapped__") or function.__wrapped__.__module__.startswith("torch.")
        assert function.__code__.co_filename.startswith(str(Path(torch.__file__).parent))


def test_a_compiler_meets_no_function_in_c(rig):
    """Before anything is compiled the twins in Python take their places, which count the same."""
    model = Model(rig)
    rig.run.instrument.timeline.compiled()
    assert type(ITERATOR.__next__) is type(torch.optim.Optimizer.zero_grad) is FunctionType
    train(model, loader(torch.ones(BATCHES, 2), 1))
    assert samples(rig) == [1] * BATCHES
