from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import stepscope
from stepscope.cli.demo.training import (
    LEAK_BYTES,
    PEAK_RATE,
    DemoSettings,
    Training,
    learning_rate,
    plan,
    resident_bytes,
)
from tests.integration.processes import wait_until_written

STEPS, SPEED = 100, 1e6


def train(seed=1, steps=STEPS, stopped=lambda: False):
    """Train through the real recorder and return the run, read back."""
    with stepscope.init(project="demo") as run:
        Training(run, DemoSettings(steps, seed, SPEED), stopped).all()
    return wait_until_written(run)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """One recorded training for all tests that only read it."""
    patch = pytest.MonkeyPatch()
    patch.setenv("STEPSCOPE_DIR", str(tmp_path_factory.mktemp("runs")))
    patch.setenv("STEPSCOPE_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    yield train()
    patch.undo()


def test_every_step_is_recorded(planted):
    """A training of n steps records n rows of every metric, at steps 0 to n-1."""
    for name in ("loss", "accuracy", "learning_rate", "grad_norm", "process/memory_bytes", "step_seconds"):
        assert planted.series(name).step.tolist() == list(range(STEPS))


def test_planted_events_are_where_the_plan_says(planted):
    """Each planted fault is an event at its own step."""
    faults = plan(STEPS)
    found = [(event["what"], event["step"]) for event in planted.events("planted")]
    evaluations = [("evaluation", step - 1) for step in faults.evaluations]
    single = [("data stall", faults.stall.start), ("loss spike", faults.spike), ("memory leak", faults.leak.start)]
    assert sorted(found) == sorted(single + evaluations)
    assert [event["step"] for event in planted.events("checkpoint")] == [faults.checkpoint]


def test_corrupted_batch_makes_the_loss_jump(planted):
    """The loss of the corrupted batch is the highest, and at least three times what it was before."""
    loss, spike = planted.series("loss").value, plan(STEPS).spike
    assert loss.argmax() == spike
    assert loss[spike] > 3 * np.median(loss[spike - 10 : spike])


def test_training_learns(planted):
    """The loss falls and the accuracy rises, in spite of the faults."""
    assert planted.summary("loss", window=10)["mean"] < 0.7 * planted.series("loss").value[0]
    assert planted.series("validation/accuracy").value[-1] > 0.6


def test_evaluation_and_checkpoint_delay_the_next_step(planted):
    """Evaluation and checkpoint happen between two steps and are charged to the one that they delay."""
    faults = plan(STEPS)
    assert planted.series("phase/evaluation").step.tolist() == list(faults.evaluations)
    assert planted.series("phase/checkpoint").step.tolist() == [faults.checkpoint + 1]


def test_leak_keeps_memory():
    """At the end the leak holds its bytes of every step since it began, in arrays of its own."""
    training = Training(stepscope.Run.off(), DemoSettings(STEPS, speed=SPEED))
    assert training.all()
    assert sum(kept.nbytes for kept in training._leak if kept.base is None) == len(plan(STEPS).leak) * LEAK_BYTES


def test_stalled_loader_pauses_longer(monkeypatch):
    """Batches of the stall wait longer than all others."""
    waits = []
    monkeypatch.setattr("stepscope.cli.demo.training.time.sleep", waits.append)
    training = Training(stepscope.Run.off(), DemoSettings(STEPS))
    for _ in training._loader:
        pass
    slow = {step for step, seconds in enumerate(waits) if seconds > 10 * min(waits)}
    assert slow == set(plan(STEPS).stall)


def test_seed_decides_the_loss():
    """The same seed gives the same losses, another one others."""
    first, again, other = (train(seed, steps=12).series("loss").value.tolist() for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_stop_is_recorded_and_ends_the_run_well():
    """A training that is asked to stop ends before the next step, says so in the run, and is finished."""
    asked = itertools.count()
    past = train(stopped=lambda: next(asked) == 5)
    assert len(past.series("loss")) == 5
    assert past.state == "finished"
    assert len(past.events("stopped")) == 1


@pytest.mark.parametrize("steps", [1, 2, 5, 30, 1000])
def test_plan_fits_any_number_of_steps(steps):
    """Every planted step lies inside the training, and the stall comes before the spike in a long one."""
    faults = plan(steps)
    assert 0 <= faults.stall.start < faults.stall.stop <= steps
    assert max(faults.spike, faults.checkpoint, faults.leak.start) < steps
    assert steps < 30 or faults.stall.stop <= faults.spike < faults.leak.start < faults.checkpoint


def test_learning_rate_warms_up_and_falls():
    """The learning rate rises to its peak over a tenth of the run and then falls to nearly nothing."""
    rates = [learning_rate(step, 200) for step in range(200)]
    assert rates[:20] == sorted(rates[:20])
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert math.isclose(max(rates), PEAK_RATE)
    assert rates[-1] < 0.01 * PEAK_RATE


def test_memory_is_measured_without_proc(tmp_path):
    """Where the system does not say how much memory is resident, the highest figure of the process serves."""
    assert resident_bytes(str(tmp_path / "absent")) >= resident_bytes() // 2 > 0
