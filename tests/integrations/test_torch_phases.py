"""Time planted in one phase of a real training loop is found there, exactly, and in no other."""

from __future__ import annotations

import gc
import logging
from io import BytesIO

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which is instrumented")
dist = pytest.importorskip("torch.distributed")

from tests.integrations import torch_rig as tr  # noqa: E402 - it needs torch

pytestmark = pytest.mark.training

PLANTED = 20


@pytest.fixture
def clock(monkeypatch):
    return tr.install(monkeypatch)


class SlowFile(BytesIO):
    """A file that takes time to be written."""

    def __init__(self, clock):
        super().__init__()
        self.clock, self.left = clock, 1

    def write(self, data):
        self.clock.pass_ms(PLANTED * self.left)
        self.left = 0
        return super().write(data)


class SlowCopy(torch.utils._python_dispatch.TorchDispatchMode):
    """A device whose copies take time."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "_to_copy" in str(function):
            self.clock.pass_ms(PLANTED)
        return function(*args, **(kwargs or {}))


class SlowHandler(logging.Handler):
    """A log that takes time to be written."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def emit(self, record):
        self.clock.pass_ms(PLANTED)


def copy_to_device(clock):
    with SlowCopy(clock):
        torch.ones(2).to("meta")


def write_log(clock):
    logger = logging.getLogger("test_torch_phases")
    logger.propagate = False
    handler = SlowHandler(clock)
    logger.addHandler(handler)
    logger.warning("a line")
    logger.removeHandler(handler)


class Cycle:
    """Something that only the collector finds, and that takes time to collect."""

    def __init__(self, clock):
        self.clock, self.me = clock, self

    def __del__(self):
        self.clock.pass_ms(PLANTED)


def collect_garbage(clock):
    gc.collect()
    Cycle(clock)
    gc.collect()


PLACES = {
    "copy": copy_to_device,
    "checkpoint": lambda clock: torch.save({"a": 1}, SlowFile(clock)),
    "communication": lambda clock: dist.all_reduce(torch.ones(1)),
    "logging": write_log,
    "gc": collect_garbage,
    "other": lambda clock: clock.pass_ms(PLANTED),
}


def train(clock, place, *, batches=6):
    """Train for some batches; the phase `place` takes 20 ms in each, all others nothing."""
    spend = {name: PLANTED if name == place else 0 for name in ("data", "forward", "backward", "optimizer")}
    model = tr.Net(clock, spend["forward"], spend["backward"])
    optimizer = tr.SlowSGD(model.parameters(), clock, spend["optimizer"])
    for x, y in tr.loader(tr.Slow(clock, spend["data"], length=batches), batch_size=1):
        loss = tr.loss_of(model(x), y)
        if place in PLACES and place != "checkpoint":
            PLACES[place](clock)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if place == "checkpoint":
            PLACES[place](clock)


@pytest.fixture
def group(tmp_path, clock, monkeypatch):
    """A process group of one, whose collectives take time."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    inner = dist.distributed_c10d.all_reduce

    def slow(*args, **kwargs):
        clock.pass_ms(PLANTED)
        return inner(*args, **kwargs)

    monkeypatch.setattr(dist.distributed_c10d, "all_reduce", slow)
    yield
    dist.destroy_process_group()


@pytest.mark.promise("S1-004")
@pytest.mark.parametrize("place", ["data", "forward", "backward", "optimizer", *PLACES])
def test_planted_time_is_found_in_its_phase_and_in_no_other(place, clock, tmp_path, request):
    """20 ms in any phase of every step are 20 ms of that phase, 0 of all others, and the phases sum to the step."""
    if place == "communication":
        request.getfixturevalue("group")
    gc.collect()
    with tr.instrumented(tmp_path, copies=True) as rig:
        train(clock, place)
    found = tr.steps_of(rig)
    assert len(found) == 6
    delayed = found[1:] if place == "checkpoint" else found  # between two steps: it belongs to the one it delays
    assert [{**step, "samples": None} for step in delayed] == [
        {place: PLANTED, "step": PLANTED, "samples": None} for _ in delayed
    ]
    assert [step["samples"] for step in found] == [1.0] * 6


@pytest.mark.parametrize("how", ["under no_grad", "inside", "inference_mode"])
def test_an_evaluation_loop_is_evaluation_throughout(how, clock, tmp_path):
    """Loading, passes and bookkeeping of an evaluation are one phase of the step that it delays, however written."""
    data = tr.Slow(clock, 1, length=4)
    quiet = torch.inference_mode if how == "inference_mode" else torch.no_grad

    def evaluate(model):
        model.eval()
        if how == "inside":
            for x, _ in tr.loader(data, 2):
                with quiet():
                    model(x)
                clock.pass_ms(3)
        else:
            with quiet():
                for x, _ in tr.loader(data, 2):
                    model(x)
                    clock.pass_ms(3)
        model.train()

    with tr.instrumented(tmp_path) as rig:
        model = tr.Net(clock, forward=5)
        optimizer = tr.SlowSGD(model.parameters(), clock)
        for epoch in range(2):
            for x, y in tr.loader(data, 2):
                tr.loss_of(model(x), y).backward()
                optimizer.step()
            if epoch == 0:
                evaluate(model)
    found = tr.steps_of(rig)
    assert len(found) == 4
    plain = {"data": 2, "forward": 5, "step": 7, "samples": 2}
    assert [found[0], found[1], found[3]] == [plain] * 3
    first = 2 if how == "inside" else 0  # the first batch comes before anything says that it is for evaluation
    whole = 2 * (2 + 5 + 3)
    expected = {"evaluation": whole - first, "data": 2 + first, "forward": 5, "step": whole + 7, "samples": 2}
    assert found[2] == expected


def test_a_teacher_without_gradients_is_part_of_the_forward_pass(clock, tmp_path):
    """A second model in evaluation mode, asked inside a training step, is no evaluation."""
    with tr.instrumented(tmp_path) as rig:
        teacher, model = tr.Net(clock, forward=7).eval(), tr.Net(clock, forward=1)
        optimizer = tr.SlowSGD(model.parameters(), clock)
        for x, _ in tr.loader(tr.Slow(clock), 4):
            with torch.no_grad():
                wanted = teacher(x).softmax(1)
            torch.nn.functional.cross_entropy(model(x), wanted).backward()
            optimizer.step()
    assert [step["forward"] for step in tr.steps_of(rig)] == [8, 8, 8]


def test_phases_of_the_users_own_win(clock, tmp_path):
    """Inside a phase that the script opens itself the hooks charge nothing; outside they go on."""
    with tr.instrumented(tmp_path) as rig:
        model = tr.Net(clock, forward=5, backward=3)
        optimizer = tr.SlowSGD(model.parameters(), clock)
        for x, y in tr.loader(tr.Slow(clock), 3):
            with rig.run.phase("thinking"):
                loss = tr.loss_of(model(x), y)
            loss.backward()
            optimizer.step()
    found = tr.steps_of(rig)
    assert [step["thinking"] for step in found] == [5] * 4
    assert [step.get("backward") for step in found[1:]] == [3] * 3
    assert not any("forward" in step for step in found)


def test_an_exception_in_a_pass_leaves_no_phase_open(clock, tmp_path):
    """After a forward pass that raised, and even one that was interrupted, later steps are charged as ever."""
    with tr.instrumented(tmp_path) as rig:
        model = tr.Net(clock, forward=2)
        optimizer = tr.SlowSGD(model.parameters(), clock)
        for number, (x, y) in enumerate(tr.loader(tr.Slow(clock), 2)):
            if number in (1, 3):
                error = RuntimeError if number == 1 else KeyboardInterrupt
                handle = model.linear.register_forward_pre_hook(lambda *_, error=error: (_ for _ in ()).throw(error()))
                with pytest.raises(error):
                    model(x)
                handle.remove()
                continue
            tr.loss_of(model(x), y).backward()
            optimizer.step()
            clock.pass_ms(1)
    assert [step.get("other") for step in tr.steps_of(rig)] == [1] * 4


def test_hooks_change_nothing_and_leave_nothing(clock, tmp_path):
    """With hooks a training gives the same weights bit for bit; afterwards torch is as it was before."""
    names = [
        (torch, "save"),
        (torch.autograd, "backward"),
        (torch.nn.Module, "__init__"),
        (torch.optim.Optimizer, "__init__"),
    ]
    before = [getattr(owner, name) for owner, name in names]

    def weights():
        torch.manual_seed(0)
        model = tr.Net(clock)
        optimizer = torch.optim.Adam(model.parameters())
        for x, y in tr.loader(tr.Slow(clock), 3, shuffle=True):
            optimizer.zero_grad()
            tr.loss_of(model(x), y).backward()
            optimizer.step()
        return model

    plain = weights()
    with tr.instrumented(tmp_path):
        watched = weights()
    assert all(map(torch.equal, plain.parameters(), watched.parameters()))
    assert [getattr(owner, name) for owner, name in names] == before
    assert not watched._forward_hooks
    assert not watched._forward_pre_hooks


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_saved_model_does_not_know_of_us(clock, tmp_path):
    """A whole model that is pickled, copied or scripted has none of our hooks in it, and keeps working."""
    import copy

    with tr.instrumented(tmp_path) as rig:
        model = torch.nn.Sequential(torch.nn.Linear(4, 2))
        rig.run.instrument.watch(model)
        file = BytesIO()
        torch.save(model, file)
        scripted, copied = torch.jit.script(model), copy.deepcopy(model)
        assert torch.equal(copied(torch.ones(1, 4)), scripted(torch.ones(1, 4)))
        assert model._forward_hooks
    assert b"stepscope" not in file.getvalue()
