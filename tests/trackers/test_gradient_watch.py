from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch

import stepscope
from stepscope.monitor import TrainingMonitor
from stepscope.recorder.complaints import Complaints
from stepscope.trackers.gradient_watch import GradientWatch
from tests.trackers.fakes import FakeRun


def rig(**options):
    """A model with known gradients: those of the sum of its two weights times the inputs."""
    model = torch.nn.Linear(2, 1, bias=False)
    return model, torch.optim.SGD(model.parameters(), lr=0.5, **options)


def train(model, scale=1.0):
    """Leave gradients of norm 5 * scale."""
    model(torch.tensor([[3.0, 4.0]]) * scale).sum().backward()


def monitored(config=None):
    run = FakeRun()
    return TrainingMonitor(config, run=run), run


@pytest.mark.promise("S1-029", "S1-030")
def test_norm_and_learning_rate_come_from_model_and_optimizer():
    """With model and optimizer alone, the norm of the gradients and the first group's learning rate are recorded."""
    model, optimizer = rig()
    monitor, run = monitored()
    train(model)
    optimizer.step()
    metrics = monitor.log_training_step(
        model=model, optimizer=optimizer, loss=1.0, accuracy=0.5, custom_metrics={"x": 2}
    )
    assert float(metrics.grad_norm) == 5.0
    assert metrics.learning_rate == 0.5
    [(step, row)] = run.rows
    assert (step, float(row["grad_norm"]), row["learning_rate"], row["x"]) == (0, 5.0, 0.5, 2)
    assert monitor.metrics["grad_norm"] == [5.0]


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.promise("S1-031")
def test_norm_is_right_though_the_gradients_are_gone(to_none, capsys):
    """After `zero_grad` the first norm is absent and told once; later ones are taken before the optimizer's step."""
    model, optimizer = rig()
    monitor, run = monitored()
    norms = []
    for scale in (1.0, 2.0, 3.0):
        train(model, scale)
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
        norms.append(monitor.log_training_step(model=model, optimizer=optimizer, loss=1.0).grad_norm)
    assert norms[0] is None
    assert [float(norm) for norm in norms[1:]] == [10.0, 15.0]
    assert "grad_norm" not in run.rows[0][1]
    assert (
        capsys.readouterr().err.count("cannot take the gradient norm of the model: its gradients were not there") == 1
    )


def test_norm_without_an_optimizer_is_that_of_the_moment():
    """A model alone is measured as it is when the step is logged."""
    model, _ = rig()
    monitor, _ = monitored()
    train(model)
    assert float(monitor.log_training_step(model=model, loss=1.0).grad_norm) == 5.0


def test_norm_is_not_taken_if_that_was_asked_for():
    """`track_gradients: false` leaves the model alone."""
    model, optimizer = rig()
    monitor, _ = monitored({"track_gradients": False})
    train(model)
    assert monitor.log_training_step(model=model, optimizer=optimizer, loss=1.0).grad_norm is None
    assert not optimizer._optimizer_step_pre_hooks


def test_sharded_gradients_are_not_measured(capsys):
    """The norm of one rank's shard is not that of the gradients: it is marked unavailable, with the reason."""

    class Shard:
        def detach(self):
            return self

        full_tensor = None

    class Parameter:
        grad = Shard()

    class Model:
        def parameters(self):
            return [Parameter()]

    watch = GradientWatch(Complaints())
    assert watch.take(Model()) is None
    assert "its parameters are sharded" in watch.unavailable
    assert "log grad_norm yourself" in capsys.readouterr().err


@pytest.mark.parametrize("model", [None, object(), 7])
def test_what_is_no_model_has_no_norm(model):
    """Anything may be passed as the model."""
    monitor, _ = monitored()
    assert monitor.log_training_step(model=model, loss=1.0).grad_norm is None


def test_model_that_raises_does_not_stop_the_loop(capsys):
    """What a model's parameters raise is told once."""

    class Broken:
        def parameters(self):
            raise RuntimeError("no parameters")

    monitor, _ = monitored()
    for _ in range(2):
        assert monitor.log_training_step(model=Broken(), loss=1.0).grad_norm is None
    assert capsys.readouterr().err.count("RuntimeError: no parameters") == 1


def test_watch_does_not_keep_a_model_or_an_optimizer_alive():
    """What the program has let go of is gone."""
    import gc
    import weakref

    monitor, _ = monitored()
    model, optimizer = rig()
    monitor.log_training_step(model=model, optimizer=optimizer, loss=1.0)
    gone = weakref.ref(model), weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_norm_can_be_read_back(tmp_path):
    """The norms are a series of the run."""
    model, optimizer = rig()
    with TrainingMonitor({"save_dir": str(tmp_path)}) as monitor:
        for _ in range(3):
            optimizer.zero_grad()
            train(model)
            optimizer.step()
            monitor.log_training_step(model=model, optimizer=optimizer, loss=1.0)
        path = monitor.run.path
    assert stepscope.open(path).series("grad_norm").value.tolist() == [5, 5, 5]
