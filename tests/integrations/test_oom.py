from __future__ import annotations

import gc
import json
import sys
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - only where torch is

from stepscope.integrations.numerics.oom import (  # noqa: E402
    OutOfMemory,
    allocator_summary,
    is_out_of_memory,
    largest_tensors,
    wanted_bytes,
)
from tests.fakes import FakeRun  # noqa: E402
from tests.recorder.rig import Rig  # noqa: E402

HUGE = 1 << 50


class Greedy(nn.Module):
    def forward(self, x):
        return torch.empty(HUGE, dtype=torch.uint8) + x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2), Greedy())

    def forward(self, x):
        return self.body(x)


def test_host_memory_runs_out():
    """A failed allocation on the host is an event with the module, the place, the wanted bytes and live tensors."""
    run, model = FakeRun(), Model()
    batch = torch.zeros(3 << 20)
    with pytest.raises(RuntimeError, match="allocate") as caught, OutOfMemory(run, model):
        model(torch.ones(1, 2))
    [event] = run.events
    assert event["kind"] == "out_of_memory"
    assert event["module"] == "body.1 (Greedy)"
    assert event["wanted_bytes"] == HUGE
    assert "test_oom.py" in event["place"]
    assert "in forward" in event["place"]
    assert event["allocator"] == []
    assert event["cause"]
    assert event["remedy"]
    assert type(caught.value) is RuntimeError
    assert batch.nbytes in {each["bytes"] for each in event["tensors"]}
    json.dumps(event)


def test_exception_goes_on_unchanged():
    """The same exception object goes on, with nothing added to it; others leave no trace at all."""
    run = FakeRun()
    for error in (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), KeyError("mine")):
        before = dict(vars(error))
        with pytest.raises(type(error)) as caught, OutOfMemory(run):
            raise error
        assert caught.value is error
        assert (vars(error), error.__cause__, error.__context__) == (before, None, None)
        assert not getattr(error, "__notes__", [])
    assert run.kinds() == ["out_of_memory"]
    assert run.events[0]["wanted_bytes"] == 2 << 30


def test_nested_contexts_record_once():
    """One error that passes several contexts is one event; the next error is another."""
    run = FakeRun()
    watch = OutOfMemory(run)
    for _ in range(2):
        with pytest.raises(MemoryError), watch, watch:
            raise MemoryError
    with watch:
        for _ in range(2):
            with pytest.raises(MemoryError), watch:
                raise MemoryError
    assert len(run.events) == 4


def test_nothing_is_kept_alive():
    """What the failed step had allocated can be freed as soon as the program lets go of the exception."""
    run = FakeRun()

    def step():
        batch = torch.ones(10)
        seen.append(weakref.ref(batch))
        raise torch.OutOfMemoryError("out of memory")

    seen = []
    try:
        with OutOfMemory(run):
            step()
    except torch.OutOfMemoryError:
        caught = True
    gc.collect()
    assert caught
    assert seen[0]() is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("x"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."), True),
        (RuntimeError("size mismatch"), False),
        (ValueError("out of memory"), False),
        (None, False),
    ],
)
def test_which_errors(error, expected):
    """Errors of memory are told from others by their type, or by torch's words in a RuntimeError."""
    assert is_out_of_memory(error) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tried to allocate 20.00 MiB. GPU 0 has", 20 << 20),
        ("you tried to allocate 400 bytes. Error", 400),
        ("Tried to allocate 1.50 GiB", 3 << 29),
        ("no figure", None),
    ],
)
def test_wanted_bytes(text, expected):
    """The bytes that could not be had are read from torch's message, on device and host."""
    assert wanted_bytes(text) == expected


def test_tensors_are_counted_once():
    """Views of one piece of memory are one entry, under the name that is known; the largest come first."""
    base, other = torch.zeros(1000), torch.zeros(10)
    found = largest_tensors([base, base[:5], other], {id(other): "bias"})
    assert [(each["bytes"], each["name"]) for each in found] == [(4000, None), (40, "bias")]


def test_parameters_have_their_names():
    """Live parameters and gradients are called as in the model."""
    run, model = FakeRun(), nn.Sequential(nn.Linear(700, 900))
    model(torch.ones(1, 700)).sum().backward()
    with pytest.raises(MemoryError), OutOfMemory(run, model):
        raise MemoryError
    assert {"0.weight", "0.weight.grad"} <= {each["name"] for each in run.events[0]["tensors"]}


def test_allocator_snapshot():
    """The allocator's segments are summed up per GPU."""
    segments = [
        {"device": 1, "total_size": 100, "allocated_size": 40, "blocks": [{"size": 60, "state": "inactive"}]},
        {"device": 1, "total_size": 50, "allocated_size": 50, "blocks": []},
    ]
    assert allocator_summary(segments) == [
        {
            "device": 1,
            "reserved_bytes": 150,
            "allocated_bytes": 90,
            "free_bytes": 60,
            "largest_free_bytes": 60,
            "segments": 2,
        }
    ]


def test_event_fits_the_recorder(tmp_path):
    """The event goes through the real recorder whole."""
    rig = Rig(tmp_path, 1 << 21)
    with pytest.raises(RuntimeError), OutOfMemory(rig.run, model := Model()):
        model(torch.ones(1, 2))
    [(_, fields)] = rig.events()
    assert "cut" not in fields
    assert fields["module"] == "body.1 (Greedy)"


@pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited by RLIMIT_AS")
def test_failure_inside_is_told(monkeypatch):
    """If even the looking fails, the event says so and the program's own error goes on."""
    run = FakeRun()
    monkeypatch.setattr("stepscope.integrations.numerics.oom._live_tensors", lambda _: 1 / 0)
    with pytest.raises(MemoryError), OutOfMemory(run):
        raise MemoryError
    assert run.events[0]["incomplete"] == "ZeroDivisionError"
