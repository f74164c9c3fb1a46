"""The hooks keep to their budget: they measure fewer steps where steps are short, and say so."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which is instrumented")

from stepscope.integrations.torch import budget as torch_budget  # noqa: E402 - it needs torch
from stepscope.integrations.torch.budget import (  # noqa: E402 - it needs torch
    CALL_NS,
    GROUP,
    OPENING_NS,
    RICH,
    SAMPLE,
    WIDEST,
    Budget,
)
from tests.integrations import torch_rig as tr  # noqa: E402 - it needs torch


@pytest.fixture
def clock(monkeypatch):
    return tr.install(monkeypatch)


@pytest.fixture(autouse=True)
def opened(monkeypatch):
    """What may be spent once in a run is spent."""
    monkeypatch.setattr(torch_budget, "OPENING_NS", 0)


def weighed(budget, spent, elapsed, times=8):
    for _ in range(times):
        budget.weigh(spent, elapsed)
    return budget.every


def test_steps_are_measured_as_often_as_the_budget_allows():
    """A cost of 5 % is thinned to below 1 %, one of 0.1 % not at all, and no more than one step of 64 is ever asked."""
    assert weighed(Budget(0.01), 1_000, 1_000_000) == 1
    every = weighed(Budget(0.01), 50_000, 1_000_000)
    assert 5 <= every <= 32
    assert weighed(Budget(0.01), 10**6, 10**6) == WIDEST


def test_the_first_steps_are_all_measured(monkeypatch):
    """A cost of 5 % is borne at the beginning, until a tenth of a second is spent; one of 50 % never is."""
    monkeypatch.setattr(torch_budget, "OPENING_NS", OPENING_NS)
    budget = Budget(0.01)
    assert weighed(budget, 50_000, 1_000_000, times=OPENING_NS // (50_000 * SAMPLE) - 1) == 1
    assert weighed(budget, 50_000, 1_000_000) > 4
    assert weighed(Budget(0.01), 500_000, 1_000_000, times=1) > 4
    assert weighed(Budget(0.0), 50_000, 1_000_000, times=1) == WIDEST


def test_a_training_that_is_known_is_measured_less():
    """After a hundred samples a cost of 0.8 % is too much for a budget of 1 %, though it was not before."""
    budget = Budget(0.01)
    assert weighed(budget, 400_000, 50_000_000, times=RICH) == 1
    assert weighed(budget, 400_000, 50_000_000) > 1


def test_longer_steps_are_all_measured_again():
    """When steps become long the hooks come back; one change, one word about it."""
    told = []
    budget = Budget(0.01, lambda every, share: told.append(every))
    weighed(budget, 50_000, 1_000_000)
    assert weighed(budget, 50_000, 10**9) == 1
    assert len(told) == len(set(told)) >= 2


def test_one_interrupted_sample_changes_nothing():
    """A sample in which the machine was busy with something else is outvoted."""
    budget = Budget(0.01)
    weighed(budget, 1_000, 10**6)
    budget.weigh(10**6, 2 * 10**6)
    assert budget.every == 1


def train(clock, steps, forward):
    model = tr.Net(clock, forward=forward)
    optimizer = tr.SlowSGD(model.parameters(), clock)
    for x, y in tr.loader(tr.Slow(clock, length=steps), 1):
        optimizer.zero_grad()
        tr.loss_of(model(x), y).backward()
        optimizer.step()
        yield model


def test_a_thinned_step_is_whole_or_bare(clock, tmp_path):
    """Of short steps only some have phases, which then sum to the step; the others have their duration and samples."""
    with tr.instrumented(tmp_path, budget=0.01) as rig:
        list(train(clock, 400, forward=1))
    found = tr.steps_of(rig)
    assert len(found) == 400
    assert all(step["step"] == 1 and step["samples"] == 1 for step in found)
    measured = [step for step in found if "forward" in step]
    assert GROUP <= len(measured) < 200
    assert all(step["forward"] == 1 and "other" not in step for step in measured)
    assert all(set(step) == {"step", "samples"} for step in found if step not in measured)
    rows = [(index, values) for index, values in rig.rows() if "step_seconds" in values]
    assert [index for index, _ in rows] == list(range(400))
    (said, *_) = tr.events_of(rig, "instrumentation")
    assert said["every"] > 1
    assert said["cost_ratio"] > 0.01


def test_long_steps_are_all_measured(clock, tmp_path):
    """Where the hooks cost less than the budget every step has its phases."""
    with tr.instrumented(tmp_path, budget=0.01) as rig:
        list(train(clock, 60, forward=8 * CALL_NS / 1e6 * 100))
    assert all("forward" in step for step in tr.steps_of(rig))


def test_an_evaluation_in_a_thinned_training_is_measured(clock, tmp_path):
    """The step that an evaluation or a checkpoint delays has its phases, however few others have."""
    with tr.instrumented(tmp_path, budget=0.01) as rig:
        for number, model in enumerate(train(clock, 300, forward=1)):
            if number == 200:
                model.eval()
                with torch.no_grad():
                    model(torch.ones(1, 4))
                model.train()
    found = tr.steps_of(rig)
    assert found[201] == {"evaluation": 1, "forward": 1, "step": 2, "samples": 1}
    assert sum("forward" in step for step in found) < 150


def test_hooks_are_off_in_unmeasured_steps(clock, tmp_path):
    """Between measured steps the model has no hooks and the backward pass is torch's own."""
    plain = torch.autograd.backward
    seen = set()
    with tr.instrumented(tmp_path, budget=0.01) as rig:
        for model in train(clock, 300, forward=1):
            quiet = rig.run.instrument.timeline.quiet
            seen.add((quiet, bool(model._forward_hooks), torch.autograd.backward is plain))
    assert seen == {(False, True, False), (True, False, True)}


def test_a_script_with_steps_of_its_own_is_never_thinned(clock, tmp_path):
    """A step that the script closes itself has its phases, always: nobody could tell a missing one from none."""
    with tr.instrumented(tmp_path, budget=0.01) as rig:
        model = tr.Net(clock, forward=1)
        optimizer = tr.SlowSGD(model.parameters(), clock)
        for x, y in tr.loader(tr.Slow(clock, length=100), 1):
            with rig.run.step():
                tr.loss_of(model(x), y).backward()
                optimizer.step()
    assert [step["forward"] for step in tr.steps_of(rig)] == [1] * 100
