from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch
from torch.nn.utils import clip_grad_norm_  # by name, as programs do

import stepscope
from stepscope.alerts.rules.backtest import replay
from stepscope.alerts.rules.profiles import profile
from stepscope.importers.imported import Imported, series_of
from stepscope.monitor import TrainingMonitor
from stepscope.recorder.complaints import Complaints
from stepscope.trackers.profiling.gradient_watch import GradientWatch
from tests.fakes import FakeRun


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
    assert capsys.readouterr().err.count("cannot take the gradient norm of the model: its gradients are gone") == 1


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
    assert watch.take(Model()).norm is None
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


def test_a_loop_that_clips_has_both_norms():
    """`grad_norm` is the one before clipping, also at the first step; the one after it has its own name."""
    model, optimizer = rig()
    monitor, run = monitored()
    for scale in (1.0, 20.0, 30.0):
        train(model, scale)
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        metrics = monitor.log_training_step(model=model, optimizer=optimizer, loss=1.0)
        optimizer.zero_grad()
        assert float(metrics.grad_norm) == pytest.approx(5.0 * scale)
        assert float(metrics.grad_norm_clipped) == pytest.approx(1.0, rel=1e-4)
    assert [float(row["grad_norm"]) for _, row in run.rows] == pytest.approx([5.0, 100.0, 150.0])
    train(model)
    optimizer.step()
    assert monitor.log_training_step(model=model, optimizer=optimizer, loss=1.0).grad_norm_clipped is None


def test_parts_that_are_clipped_apart_make_one_norm():
    """A clipped part and a rest that is not; another model's clipping says nothing, nor does one by another norm."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
    other, _ = rig()
    monitor, _ = monitored()
    for parameter, norm in zip(model.parameters(), (3.0, 4.0), strict=True):
        parameter.grad = torch.full_like(parameter, norm / parameter.numel() ** 0.5)
    train(other, 100.0)
    torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    torch.nn.utils.clip_grad_norm_(model[0].parameters(), 1.0)
    assert float(monitor.log_training_step(model=model, loss=1.0).grad_norm) == pytest.approx(5.0)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=1.0)
    metrics = monitor.log_training_step(model=model, loss=1.0)
    assert metrics.grad_norm is None
    assert metrics.grad_norm_clipped is not None


def test_the_explosion_rule_sees_a_clipped_loop():
    """What a monitor logs of a loop that clips fires the rule when the gradients explode."""
    model, optimizer = rig()
    run = FakeRun()
    monitor = TrainingMonitor(run=run)
    for step in range(120):
        train(model, 0.2 if step < 100 else 50.0)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        monitor.log_training_step(model=model, optimizer=optimizer, loss=1.0)
        optimizer.zero_grad()
    rule = next(rule for rule in profile() if rule.name == "gradient_exploding")
    norms = [float(row["grad_norm"]) for _, row in run.rows]
    steps = range(len(norms))
    source = Imported("", "", {"grad_norm": series_of("grad_norm", steps, norms, [float(step) for step in steps])})
    assert [change.step for change in replay([rule], source)] == [102]


@pytest.mark.promise("S1-026", "S1-075")
@pytest.mark.parametrize("clips", [False, True])
def test_the_layers_of_the_configuration_are_tracked_one_by_one(clips):
    """`track_layers` chooses layers by parts of their names; their norms are those before clipping, as the whole is."""
    model = torch.nn.Sequential()
    for name in ("encoder", "middle", "head"):
        model.add_module(name, torch.nn.Linear(2, 2, bias=False))
    wrapped = torch.nn.parallel.DataParallel(model)  # which puts "module." before every name
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"track_gradients": True, "gradient_monitoring": {"track_layers": ["encoder", "head"]}}
    monitor, run = monitored(config)
    expected = []
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        expected.append({name: float(layer.weight.grad.norm()) for name, layer in model.named_children()})
        if clips:
            clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        monitor.log_training_step(model=wrapped, optimizer=optimizer, loss=1.0)
        optimizer.zero_grad()
    for (_, row), known in zip(run.rows, expected, strict=True):
        layers = {name.removeprefix("grad_norm/"): float(value) for name, value in row.items() if "grad_norm/" in name}
        assert layers == pytest.approx({name: known[name] for name in ("encoder", "head")}, rel=1e-4)
