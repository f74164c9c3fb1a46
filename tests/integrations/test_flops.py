from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - only where torch is

from stepscope.integrations.numerics.flops import GPUS, Flops, cpu_peak, gpu_peak, mfu_ratio  # noqa: E402
from tests.fakes import Clock, FakeRun  # noqa: E402

CPU = "flags\t\t: fpu avx avx2 avx512f\nmodel name\t: Intel Xeon @ 2.00GHz\ncpu MHz\t\t: 2100.5\n"


def train(watch, clock, samples, steps=6, model=None, tell=True):
    model = model or nn.Linear(16, 32, bias=False)
    for _ in range(steps):
        model.zero_grad()
        model(torch.randn(samples, 16, requires_grad=True)).sum().backward()
        clock.now += 0.5
        watch.step_end(samples if tell else None)
        watch.step_begin()
    return model


def test_counted_once():
    """The operations of one step are counted: twice the multiply-adds of forward and of both halves of backward."""
    run, clock = FakeRun(), Clock()
    watch = Flops(run, peak=1e6, clock=clock, warm_up=2)
    train(watch, clock, samples=4)
    per_sample = 3 * 2 * 16 * 32
    assert watch.per_unit == per_sample
    [event] = run.events
    assert (event["kind"], event["flops"], event["dtype"]) == ("flops_counted", per_sample, "float32")
    assert "peak" in event["definition"]
    assert run.values("mfu_ratio") == pytest.approx([4 * per_sample / (0.5 * 1e6)] * 3)
    assert not watch.counting


def test_scaled_by_the_samples():
    """A step with half the samples has half the operations: its MFU in half the time is the same."""
    run, clock = FakeRun(), Clock()
    watch = Flops(run, peak=1e6, clock=clock, warm_up=1)
    model = train(watch, clock, samples=8, steps=3)
    model.zero_grad()
    clock.now += 0.25
    watch.step_end(4)
    watch.step_begin()
    first, last = run.values("mfu_ratio")
    assert first == pytest.approx(last)
    watch.step_end(None)
    assert len(run.values("mfu_ratio")) == 2


def test_without_samples():
    """Where samples are not told, the operations are those of a step."""
    run, clock = FakeRun(), Clock()
    watch = Flops(run, peak=1e6, clock=clock, warm_up=1)
    train(watch, clock, samples=4, tell=False)
    assert watch.per_unit == 4 * 3 * 2 * 16 * 32


def test_given_by_the_user():
    """With FLOPs and peak given nothing is counted."""
    run, clock = FakeRun(), Clock()
    watch = Flops(run, peak=1e6, flops=1000.0, clock=clock, warm_up=1)
    train(watch, clock, samples=4, steps=3)
    assert run.values("mfu_ratio") == pytest.approx([4 * 1000 / (0.5 * 1e6)] * 2)


def test_unknown_peak_is_absent(monkeypatch):
    """Without a peak there is no MFU, and the event says what to give."""
    monkeypatch.setattr("stepscope.integrations.numerics.flops.device_peak", lambda *_: None)
    run, clock = FakeRun(), Clock()
    train(Flops(run, clock=clock, warm_up=1), clock, samples=4)
    assert run.values("mfu_ratio") == []
    assert run.kinds() == ["mfu_unavailable"]
    assert "peak=" in run.events[0]["remedy"]


def test_compiled_model_is_not_counted():
    """The operations of a compiled model cannot be seen: there is no MFU rather than a wrong one."""
    run, clock = FakeRun(), Clock()
    watch = Flops(run, peak=1e6, clock=clock, warm_up=1)
    model = nn.Linear(16, 32)
    model.compile(backend="eager")
    watch.attach(model)
    watch.step_end(4)
    watch.step_begin()
    assert (watch.counting, run.kinds()) == (False, ["mfu_unavailable"])


def test_modes_are_left():
    """After the counted step, and after close in the midst of it, no mode stays behind."""
    run, clock = FakeRun(), Clock()
    watch = Flops(run, peak=1e6, clock=clock, warm_up=1)
    train(watch, clock, samples=4, steps=1)
    assert watch.counting
    watch.close()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


@given(st.floats(1, 1e18), st.floats(1e-6, 1e4), st.floats(1e6, 1e16))
def test_mfu_arithmetic(flops, seconds, peak):
    """MFU is FLOPs by seconds and peak."""
    assert mfu_ratio(flops, seconds, peak) == pytest.approx(flops / seconds / peak)


def test_no_time_no_mfu():
    """A step of no duration has no MFU."""
    assert mfu_ratio(1.0, 0.0, 1.0) is None


@pytest.mark.parametrize(
    ("name", "dtype", "tf32", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", False, 989.4e12),
        ("NVIDIA H100 PCIe", "float16", False, 756e12),
        ("NVIDIA A100-SXM4-80GB", "float32", False, 19.5e12),
        ("NVIDIA A100-SXM4-80GB", "float32", True, 156e12),
        ("NVIDIA L40S", "bfloat16", False, 362e12),
        ("NVIDIA A10G", "bfloat16", False, 70e12),
        ("Tesla T4", "float16", False, 65e12),
        ("Tesla V100-SXM2-16GB", "float32", True, None),
        ("NVIDIA A100-SXM4-80GB", "float64", False, None),
        ("Something new", "bfloat16", False, None),
    ],
)
def test_peaks_of_gpus(name, dtype, tf32, peak):
    """The peak is that of the device and the type; unknown ones have none."""
    assert gpu_peak(name, dtype, tf32=tf32) == peak


def test_special_names_come_first():
    """No name of the table hides a more special one behind it."""
    names = [name for name, _ in GPUS]
    assert not [(a, b) for at, a in enumerate(names) for b in names[at + 1 :] if a in b]


def test_peak_of_a_processor():
    """The peak of a processor is its clock by its widest instructions and its cores; None if that cannot be told."""
    assert cpu_peak(CPU, 2) == 64 * 2.0e9 * 2
    assert cpu_peak(CPU.replace(" @ 2.00GHz", ""), 1) == pytest.approx(64 * 2.1005e9)
    assert cpu_peak("", 4) is None
