from __future__ import annotations

import gc
import itertools
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - only where torch is

from stepscope.integrations.numerics.gradient_norm import gradients_of, norms_of, total_of  # noqa: E402
from stepscope.integrations.numerics.gradients import Gradients  # noqa: E402
from stepscope.integrations.numerics.readback import Readback  # noqa: E402
from tests.fakes import Clock, FakeRun  # noqa: E402
from tests.integrations.stand_ins import Events, Gpu  # noqa: E402


def grad_norm(parameters):
    """Return the norm of these parameters' gradients, by the functions under test."""
    return total_of(norms_of(gradients_of(parameters).tensors)[0])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


class Loop:
    """A training of a small network, with everything that the instrumentation calls."""

    def __init__(self, run=None, model=None, every=1, layers=(), **more):
        self.run = run or FakeRun()
        self.model = model or network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.watch = Gradients(self.run, every, layers, **{"budget": None, **more})
        self.watch.attach(self.model)

    def backward(self, factor=1.0):
        self.optimizer.zero_grad()
        (self.model(torch.ones(3, 4)) * factor).sum().backward()

    def update(self):
        self.watch.before_optimizer(self.optimizer)
        self.optimizer.step()
        self.watch.after_optimizer(self.optimizer)
        self.watch.step_end()
        self.run.step_index += 1

    def norm(self):
        gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))


@pytest.fixture
def loop():
    made = Loop()
    yield made
    made.watch.close()


@given(
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=6),
    types=st.lists(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), min_size=6, max_size=6),
    seed=st.integers(0, 1000),
)
def test_norm_is_torchs(shapes, types, seed):
    """The norm is that of torch's get_total_norm, for any shapes and mixed types."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape, dtype in zip(shapes, types, strict=False)]
    found = total_of(norms_of(tensors)[0])
    exact = torch.nn.utils.get_total_norm([each.double() for each in tensors])
    assert float(found) == pytest.approx(float(exact), rel=1e-5)


@pytest.mark.promise("S1-002")
def test_norm_before_the_optimizer(loop):
    """Without clipping the norm is measured just before the step, and belongs to that step."""
    expected = []
    for _ in range(3):
        loop.backward()
        expected.append(loop.norm())
        loop.update()
    assert loop.run.values("grad_norm") == pytest.approx(expected)
    assert [step for step, row in loop.run.rows if "grad_norm" in row] == [0, 1, 2]


def test_norm_of_the_programs_clipping(loop):
    """Where the program clips, its own norm is recorded at every step, for nothing, as it was before clipping."""
    loop.watch._cadence._every = 10**6
    loop.watch._cadence._since = 0
    for _ in range(3):
        loop.backward()
        expected = loop.norm()
        said = torch.nn.utils.clip_grad_norm_(loop.model.parameters(), expected / 2)
        loop.update()
        assert loop.run.values("grad_norm")[-1] == pytest.approx(expected) == pytest.approx(float(said))
    assert loop.run.values("grad_norm_interval") == [1]


def test_clipping_imported_by_name():
    """A program that has imported clip_grad_norm_ before is heard as well; after close torch is as it was."""
    from torch.nn.utils import clip_grad, clip_grad_norm_

    before = [clip_grad._get_total_norm, clip_grad._clip_grads_with_norm_, torch.nn.utils.clip_grads_with_norm_]
    loop = Loop()
    loop.backward()
    expected = loop.norm()
    clip_grad_norm_(loop.model.parameters(), 0.01)
    loop.update()
    loop.watch.close()
    assert loop.run.values("grad_norm") == pytest.approx([expected])
    after = [clip_grad._get_total_norm, clip_grad._clip_grads_with_norm_, torch.nn.utils.clip_grads_with_norm_]
    assert before == after


def test_clipping_by_another_norm(loop):
    """Where the program clips by the largest element, the recorded norm is still the 2-norm before it."""
    loop.backward()
    expected = loop.norm()
    torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 0.01, norm_type=float("inf"))
    loop.update()
    assert loop.run.values("grad_norm") == pytest.approx([expected])


def test_clipping_of_some_parameters(loop):
    """Where the program clips a part, its norm and that of the rest make the norm of all."""
    loop.backward()
    expected = loop.norm()
    torch.nn.utils.clip_grad_norm_(loop.model[0].parameters(), 0.01)
    loop.update()
    assert loop.run.values("grad_norm") == pytest.approx([expected])


def test_clipping_is_unchanged(loop):
    """Clipping returns and does the same with us as without, for a generator and for one tensor too."""
    bare = network()
    for what in (lambda model: model.parameters(), lambda model: model[0].weight):
        loop.backward()
        bare.zero_grad()
        bare(torch.ones(3, 4)).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(what(loop.model), 0.3)
        loop.watch.close()
        assert torch.equal(norm, torch.nn.utils.clip_grad_norm_(what(bare), 0.3))
        loop.watch.attach()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(loop.model.parameters(), bare.parameters(), strict=True))


@pytest.mark.slow
def test_clipping_compiles_as_before(loop):
    """A compiled function that clips has no graph break because of us."""
    parameter = nn.Parameter(torch.ones(3))

    def clip():
        return torch.nn.utils.clip_grad_norm_([parameter], 1.0)

    parameter.grad = torch.ones(3)
    ours = torch._dynamo.explain(clip)()
    loop.watch.close()
    torch._dynamo.reset()
    assert ours.graph_break_count == torch._dynamo.explain(clip)().graph_break_count
    torch._dynamo.reset()


@pytest.mark.parametrize("to_none", [True, False])
def test_cleared_gradients(loop, to_none):
    """Gradients that were set to None are absent and said to be so, never 0; zeros are zeros."""
    for _ in range(4):
        loop.backward()
        loop.optimizer.zero_grad(set_to_none=to_none)
        loop.update()
    assert loop.run.values("grad_norm") == ([] if to_none else [0.0] * 4)
    assert loop.run.kinds() == (["gradient_unavailable"] if to_none else ["dead_gradient"])
    assert all(event["cause"] and event["remedy"] for event in loop.run.events)


def test_absent_gradients_are_left_out():
    """A model without gradients has none, rather than zeros."""
    model = network()
    assert gradients_of(model.parameters()).tensors == []
    model(torch.ones(1, 4)).sum().backward()
    assert float(grad_norm(model.parameters())) > 0


def test_interval_follows_the_budget():
    """A norm that costs too much of the step's time is taken less often, and the interval is recorded."""
    clock = Clock()
    loop = Loop(every=5, budget=0.01, clock=clock)
    stop = loop.watch._cadence.stop
    loop.watch._cadence.stop = lambda begun, more=0.0: stop(begun - 0.003, more)  # each norm takes 3 ms
    for _ in range(100):
        loop.backward()
        loop.update()
        clock.now += 0.010
    loop.watch.close()
    taken = [step for step, row in loop.run.rows if "grad_norm" in row]
    assert taken[:3] == [0, 5, 10]  # a hundredth of a second may be spent in any case
    assert {b - a for a, b in itertools.pairwise(taken[3:])} == {30}
    assert loop.run.values("grad_norm_interval")[-1] == 30


def test_a_budget_of_nothing_is_kept():
    """Where nothing may be spent the norm is taken once, when its cost is not known yet, and never again."""
    clock = Clock()
    loop = Loop(every=5, budget=0.0, clock=clock)
    stop = loop.watch._cadence.stop
    loop.watch._cadence.stop = lambda begun, more=0.0: stop(begun - 0.003, more)
    for _ in range(100):
        loop.backward()
        loop.update()
        clock.now += 0.010
    loop.watch.close()
    assert [step for step, row in loop.run.rows if "grad_norm" in row] == [0]


def test_several_optimizers():
    """Each optimizer has a norm of its own; that of the first has the plain name."""
    loop = Loop()
    other = nn.Linear(4, 1)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    loop.backward()
    expected = loop.norm()
    other(torch.ones(2, 4)).sum().backward()
    loop.watch.before_optimizer(loop.optimizer)
    loop.watch.before_optimizer(second)
    loop.watch.step_end()
    loop.watch.close()
    assert loop.run.values("grad_norm") == pytest.approx([expected])
    assert loop.run.values("grad_norm/optimizer_1") == pytest.approx([float(grad_norm(other.parameters()))])


@pytest.mark.promise("S1-075")
def test_tracked_layers():
    """Layers whose names hold a tracked part have norm and statistics of their own; others have none."""
    model = nn.ModuleDict({"encoder": nn.Linear(4, 4), "decoder": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    run = FakeRun()
    watch = Gradients(run, 1, ["encoder", "head"], budget=None)
    watch.attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model["head"](model["decoder"](model["encoder"](torch.randn(5, 4)))).sum().backward()
    watch.before_optimizer(optimizer)
    watch.step_end()
    watch.close()
    names = {name for _, row in run.rows for name in row if "/" in name}
    assert {name.partition("/")[2] for name in names} == {"encoder", "head"}
    flat = torch.cat([each.grad.flatten() for each in model["encoder"].parameters()])
    assert run.values("grad_norm/encoder")[0] == pytest.approx(float(flat.norm()), rel=1e-5)
    assert run.values("grad_mean/encoder")[0] == pytest.approx(float(flat.mean()), rel=1e-4, abs=1e-6)
    assert run.values("grad_std/encoder")[0] == pytest.approx(float(flat.std(correction=0)), rel=1e-4)
    assert run.values("grad_max/encoder")[0] == pytest.approx(float(flat.abs().max()))
    assert run.values("grad_zero_ratio/encoder")[0] == pytest.approx(float((flat == 0).float().mean()))


def test_layers_before_clipping():
    """The norms of tracked layers are those before clipping, as the norm of all is."""
    loop = Loop(layers=[""])
    loop.backward()
    expected = float(grad_norm(loop.model[0].parameters()))
    torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 0.01)
    loop.update()
    loop.watch.close()
    assert loop.run.values("grad_norm/0")[0] == pytest.approx(expected, rel=1e-4)


def test_layer_without_a_gradient():
    """A tracked layer that no gradient reaches is absent, and is said to be dead."""
    loop = Loop(layers=["2"])
    for _ in range(3):
        loop.backward()
        for each in loop.model[2].parameters():
            each.grad = None
        loop.update()
    loop.watch.close()
    assert not any("grad_norm/2" in row for _, row in loop.run.rows)
    [event] = loop.run.events
    assert (event["kind"], event["name"]) == ("dead_gradient", "grad_norm/2")


@pytest.mark.promise("S1-002")
def test_exploding_is_told():
    """A norm far above the usual is an event with cause and remedy, at its step."""
    loop = Loop()
    for step in range(20):
        loop.backward(factor=1000.0 if step == 15 else 1.0)
        torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 1e-6)
        loop.update()
    loop.watch.close()
    [event] = loop.run.events
    assert (event["kind"], event["step"]) == ("exploding_gradient", 15)
    assert event["cause"]
    assert event["remedy"]


@pytest.mark.parametrize("fused", [False, True])
def test_loss_scaling(fused):
    """Under a GradScaler the norm is that of the gradients without the scale."""
    model = network()
    run = FakeRun()
    watch = Gradients(run, 1, budget=None)
    optimizer = torch.optim.Adam(model.parameters(), fused=fused)
    optimizer.register_step_pre_hook(lambda *_: watch.before_optimizer(optimizer))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loss = model(torch.ones(3, 4)).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    watch.step_end()
    model.zero_grad()
    reference = network()
    reference(torch.ones(3, 4)).sum().backward()
    assert run.values("grad_norm") == pytest.approx([float(grad_norm(reference.parameters()))], rel=1e-4)


def test_update_ratio(loop):
    """The update ratio is the norm of what the step changes, divided by that of the weights before it."""
    loop.backward()
    before = torch.cat([each.detach().flatten() for each in loop.model.parameters()])
    loop.update()
    after = torch.cat([each.detach().flatten() for each in loop.model.parameters()])
    assert loop.run.values("update_ratio") == pytest.approx([float((after - before).norm() / before.norm())], rel=1e-4)


def test_histograms_on_request(loop):
    """Histograms of parameters and gradients come once, when asked for, with the step's values."""
    loop.backward()
    expected = loop.model[0].weight.detach().clone()
    loop.watch.request_histograms()
    loop.update()
    loop.backward()
    loop.update()
    names = [name for _, name, _ in loop.run.histograms]
    assert len(names) == 8
    assert {"parameters/0.weight", "gradients/0.weight"} <= set(names)
    assert all(step == 0 for step, _, _ in loop.run.histograms)
    assert torch.equal(loop.run.histograms[0][2], expected)


def test_sparse_gradients():
    """The norm of a sparse gradient sums up rows that occur twice."""
    table = nn.Embedding(10, 3, sparse=True)
    dense = nn.Embedding(10, 3, _weight=table.weight.detach().clone())
    for each in (table, dense):
        (each(torch.tensor([1, 1, 4])) * torch.arange(3.0)).sum().backward()
    assert float(grad_norm(table.parameters())) == pytest.approx(float(grad_norm(dense.parameters())))


class Shard:
    """A gradient that is split over ranks, as a DTensor is."""

    def __init__(self, local, ranks, replicated=False):
        self._local, self.placements = local, [self]
        self.device_mesh, self.replicated, self.ranks = self, replicated, ranks

    def is_replicate(self):
        return self.replicated

    def size(self, _):
        return self.ranks

    def to_local(self):
        return self._local


@pytest.mark.parametrize(
    ("ranks", "replicated", "whole"), [(2, False, False), (2, True, True), (1, False, True), (1, True, True)]
)
def test_shards(ranks, replicated, whole):
    """Of a sharded gradient the local part is taken, and it is whole only if no other rank has more of it."""
    parameter = type("Parameter", (), {"grad": Shard(torch.ones(4), ranks, replicated)})
    found = gradients_of([parameter])
    assert found.complete is whole
    assert float(total_of(norms_of(found.tensors)[0])) == 2.0


def test_local_norm_is_named_so(monkeypatch):
    """The norm of shards is recorded as local and never as the gradient's."""
    loop = Loop()
    loop.backward()
    shards = gradients_of(list(loop.model.parameters()))._replace(complete=False)
    monkeypatch.setattr("stepscope.integrations.numerics.gradients.gradients_of", lambda _: shards)
    loop.update()
    loop.watch.close()
    assert loop.run.values("grad_norm") == []
    assert loop.run.values("grad_norm_local") != []


def test_no_wait_for_the_device():
    """Nothing waits for the device: values are logged as its tensors, and judged when they have arrived."""
    events = Events()
    run = FakeRun()
    watch = Gradients(run, 1, [""], budget=None, readback=Readback({"cuda": events}))
    parameters = [Gpu(torch.ones(2, 3)), Gpu(torch.full((3,), 2.0))]
    for each in parameters:
        each.requires_grad_()
        each.grad = Gpu(torch.ones(each.shape))
    optimizer = type("Optimizer", (), {"param_groups": [{"params": parameters}]})()
    Gpu.waits.clear()
    watch.before_optimizer(optimizer)
    watch.after_optimizer(optimizer)
    watch.step_end()
    assert watch.failures.count == 0, run.events
    [(_, row)] = run.rows
    assert isinstance(row["grad_norm"], Gpu)
    assert isinstance(row["update_ratio"], Gpu)
    run.step_index = 1
    watch.step_end()
    assert len(run.rows) == 1
    events.done = True
    watch.step_end()
    [_, (step, layers)] = run.rows
    assert step == 0
    assert layers["grad_norm/parameter_0"] == pytest.approx(6**0.5)
    assert Gpu.waits == []


def test_gradients_are_not_kept_alive(loop):
    """A gradient that the program lets go is gone, whether or not its norm was told."""
    loop.backward()
    torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
    gone = weakref.ref(loop.model[0].weight.grad)
    loop.optimizer.zero_grad(set_to_none=True)
    gc.collect()
    assert gone() is None


def test_failure_stays_inside(loop, monkeypatch):
    """Whatever fails in the measurement is told and given up after three times; the training goes on."""
    monkeypatch.setattr("stepscope.integrations.numerics.gradients.gradients_of", lambda _: 1 / 0)
    for _ in range(5):
        loop.backward()
        loop.update()
    assert [event["given_up"] for event in loop.run.events] == [False, True]
    assert "ZeroDivisionError" in loop.run.events[0]["cause"]


def test_nothing_without_a_recording(loop):
    """A run that does not record costs no norm."""
    loop.run.recording = False
    loop.backward()
    loop.update()
    assert loop.run.rows == []
