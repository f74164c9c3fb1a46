"""Values on a device are recorded without waiting for the device."""

from __future__ import annotations

import sys
import threading

import pytest

from stepscope.recorder import intake as intake_module
from stepscope.recorder.device import DeviceValues
from stepscope.session import run as run_module
from tests.recorder.fake_torch import Gpu, JaxArray
from tests.recorder.rig import Rig


@pytest.fixture
def gpu(monkeypatch):
    """A device, and torch's place taken by its module."""
    made = Gpu()
    monkeypatch.setitem(sys.modules, "torch", made.torch)
    yield made
    assert made.waits == []


def test_no_wait_and_the_right_row(rig, gpu, ticks):
    """A device value is recorded when it has arrived, with the step and time of its call, and nothing waits."""
    ticks[0] = 111
    with rig.run.step():
        rig.run.log({"loss": gpu.tensor(0.5), "lr": 0.1})
    ticks[0] = 222
    rig.run.log({"x": 1.0}, step=9)
    assert [row for _, row in rig.rows() if "loss" in row] == []
    gpu.run()
    rig.run.log({"x": 2.0}, step=10)
    table = rig.table()
    late = [(now, step) for schema, _, now, step, _ in rig.records() if table.schemas[schema].names == ("loss",)]
    assert late == [(111, 0)]
    assert [row for _, row in rig.rows() if "loss" in row] == [{"loss": 0.5}]


def test_value_at_the_call(rig, gpu):
    """An accumulator that is changed in place after the call keeps the value that it had at the call."""
    total = gpu.tensor(1.0)
    for _ in range(3):
        rig.run.log({"total": total})
        total.add_(10.0)
    gpu.run()
    rig.run.log({"x": 0.0})
    assert [row["total"] for _, row in rig.rows() if "total" in row] == [1.0, 11.0, 21.0]


def test_rows_arrive_in_their_order(rig, gpu):
    """Rows of device values are written in the order of their calls, as far as they have arrived."""
    for number in range(4):
        rig.run.log({"loss": gpu.tensor(float(number))})
    gpu.run(most=4)  # copy and event of the first two
    rig.run.log({"x": 0.0})
    assert [(step, row["loss"]) for step, row in rig.rows() if "loss" in row] == [(0, 0.0), (1, 1.0)]
    gpu.run()
    rig.run.log({"x": 0.0})
    assert [(step, row["loss"]) for step, row in rig.rows() if "loss" in row][2:] == [(2, 2.0), (3, 3.0)]


def test_slots_come_back(rig, gpu):
    """The pinned slots are reserved once and used again."""
    for number in range(3000):
        rig.run.log({"loss": gpu.tensor(float(number))})
        gpu.run()
    assert gpu.pinned == [(1024, "float64", True)]
    assert rig.refused == 0


def test_too_many_in_flight(tmp_path, gpu):
    """More values in flight than there are slots are refused and counted; when some arrive there is room again."""
    rig = Rig(tmp_path, devices=DeviceValues(slots=3))
    for number in range(5):
        rig.run.log({"loss": gpu.tensor(float(number))})
    assert (rig.refused, rig.complaints()) == (2, {"device": 2})
    gpu.run()
    rig.run.log({"loss": gpu.tensor(9.0)})
    gpu.run()
    rig.run.log({"x": 0.0})
    assert [row["loss"] for _, row in rig.rows() if "loss" in row] == [0.0, 1.0, 2.0, 9.0]


def test_too_many_rows_in_flight(rig, monkeypatch):
    """The rows that wait are bounded too."""
    monkeypatch.setattr(intake_module, "MAX_PENDING", 2)
    arrays = [JaxArray(float(number)) for number in range(4)]
    for array in arrays:
        rig.run.log({"loss": array})
    assert (rig.refused, rig.complaints()) == (2, {"pending": 2})


def test_graph_capture(rig, gpu):
    """While a graph is being captured device values are refused and counted; the others of the call are kept."""
    gpu.capturing = True
    rig.run.log({"loss": gpu.tensor(1.0), "lr": 0.1})
    gpu.capturing = False
    assert [row for _, row in rig.rows()] == [{"lr": 0.1}]
    assert (rig.refused, rig.complaints()) == (1, {"device": 1})
    assert gpu.queue == []
    assert "captured" in rig.said.getvalue()


def test_tensor_of_several_elements(rig, gpu):
    """A tensor of several elements is refused without being read, and the remedy is named."""
    rig.run.log({"w": gpu.tensor(1.0, count=10)})
    rig.run.log({"w": JaxArray(1.0, size=10)})
    assert (rig.refused, rig.complaints()) == (2, {"device": 2})
    assert "run.histogram" in rig.said.getvalue()


def test_refused_copy_costs_no_slot(tmp_path, gpu):
    """A copy that the device refuses is counted and gives its slot back."""
    rig = Rig(tmp_path, devices=DeviceValues(slots=2))
    gpu.refuses = True
    for _ in range(5):
        rig.run.log({"loss": gpu.tensor(1.0)})
    gpu.refuses = False
    rig.run.log({"loss": gpu.tensor(2.0)})
    gpu.run()
    rig.run.log({"x": 0.0})
    assert [row["loss"] for _, row in rig.rows() if "loss" in row] == [2.0]
    assert rig.refused == 5


def test_device_without_events(rig, gpu):
    """A device that has no events is not waited for: its values are refused with the reason."""
    rig.run.log({"loss": gpu.tensor(1.0, kind="odd")})
    assert rig.complaints() == {"device": 1}
    assert "has no events" in rig.said.getvalue()


def test_device_in_trouble(rig, gpu):
    """A device that raises when asked costs the row, which is counted, and never raises into the training."""
    rig.run.log({"loss": gpu.tensor(1.0)})
    gpu.event_error = RuntimeError("CUDA error: an illegal memory access was encountered")
    rig.run.log({"x": 1.0})
    rig.run.log({"x": 2.0})
    assert [row for _, row in rig.rows()] == [{"x": 1.0}, {"x": 2.0}]
    assert (rig.refused, rig.complaints()) == (1, {"device": 1})


def test_values_may_be_switched_off(tmp_path, gpu):
    """recorder.device_values: false skips device values and counts them."""
    rig = Rig(tmp_path, devices=DeviceValues(0))
    rig.run.log({"loss": gpu.tensor(1.0), "x": 1.0})
    assert [row for _, row in rig.rows()] == [{"x": 1.0}]
    assert rig.complaints() == {"device": 1}


def test_device_values_as_step_and_samples(rig, gpu):
    """A step or a number of samples that lives on a device is not read: that would wait for it."""
    rig.run.log({"a": 1.0}, step=gpu.tensor(5))
    with rig.run.step(samples=gpu.tensor(32)):
        pass
    assert [row for _, row in rig.rows() if "a" in row] == [{"a": 1.0}]
    assert rig.complaints() == {"step": 1, "samples": 1}


def test_known_names_with_a_device_value(rig, gpu):
    """A name that was a plain number before may be a device value later, and the other way round."""
    rig.run.log({"loss": 1.0})
    rig.run.log({"loss": JaxArray(2.0)})
    rig.run.log({"loss": 3.0})
    rig.intake.pending[0][1][0]._value.ready = True
    rig.run.log({"loss": 4.0})
    assert sorted((step, row["loss"]) for step, row in rig.rows()) == [(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)]


def test_jax_array(rig):
    """A JAX array is immutable: its copy is asked for at the call and read when it is ready."""
    scalar, one = JaxArray(0.5), JaxArray(0.25, ndim=1)
    rig.run.log({"a": scalar, "b": one})
    rig.run.log({"x": 0.0})
    assert scalar.asked == one.asked == 1
    scalar.ready = True
    rig.run.log({"x": 0.0})
    assert not any("a" in row for _, row in rig.rows())
    one.ready = True
    rig.run.log({"x": 0.0})
    assert [(step, row) for step, row in rig.rows() if "a" in row] == [(0, {"a": 0.5, "b": 0.25})]


def test_deleted_jax_array(rig):
    """An array whose buffer was donated, and so deleted, costs its row and nothing else."""
    array = JaxArray(0.5)
    rig.run.log({"a": array})
    array.error = RuntimeError("Array has been deleted")
    rig.run.log({"x": 1.0})
    assert [row for _, row in rig.rows()] == [{"x": 1.0}]
    assert rig.refused == 1


def test_end_settles_what_has_arrived(rig, gpu, monkeypatch):
    """The end of a run writes the device values that have arrived."""
    monkeypatch.setattr(run_module, "END_SECONDS", 0)
    rig.run.log({"loss": gpu.tensor(0.5)})
    gpu.run()
    rig.run.finish()
    assert [row for _, row in rig.rows()] == [{"loss": 0.5}]
    assert rig.refused == 0


def test_end_waits_a_moment(rig, gpu, monkeypatch):
    """The end of a run waits a moment for values that are just arriving."""
    monkeypatch.setattr(run_module, "SETTLE_SECONDS", 60)
    rig.run.log({"loss": gpu.tensor(0.5)})
    timer = threading.Timer(0.01, gpu.run)
    timer.start()
    rig.run.stop(None, 2)
    timer.join()
    assert [row for _, row in rig.rows()] == [{"loss": 0.5}]


def test_end_does_not_wait_for_a_stuck_device(rig, gpu, monkeypatch):
    """Values that do not arrive are given up in bounded time, and counted."""
    monkeypatch.setattr(run_module, "SETTLE_SECONDS", 0.01)
    for _ in range(3):
        rig.run.log({"loss": gpu.tensor(0.5)})
    rig.run.stop(None, 2)
    assert rig.rows() == []
    assert (rig.refused, rig.complaints()) == (3, {"late": 1})
