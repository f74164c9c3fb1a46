"""The twin in C does to the byte what the hot path in Python does."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.recorder import native
from tests.recorder.rig import Rig

NAMES = st.sampled_from(["loss", "lr", "a", "b", "é"])
NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-(2**70), 2**70),
    st.booleans(),
    st.sampled_from([2**1100, "text", None, 1j, math.nan]),
)
CALLS = st.one_of(
    st.tuples(st.just("log"), st.dictionaries(NAMES, NUMBERS, max_size=4), st.one_of(st.none(), st.integers(-9, 9))),
    st.tuples(st.just("step"), st.one_of(st.none(), st.integers(0, 64), st.floats(0, 9), st.just("many"))),
    st.tuples(st.just("index"), st.integers(0, 2**63)),
    st.tuples(st.just("enter"), st.sampled_from(["forward", "backward", "evaluation", 7])),
    st.tuples(st.just("exit")),
)


class Driver:
    """Makes calls of a run; what it opened it closes."""

    def __init__(self, rig, now):
        self.run, self.now, self.open = rig.run, now, []

    def make(self, call):
        self.now[0] += 7
        kind, *arguments = call
        if kind == "log":
            values, step = arguments
            if step is None:
                self.run.log(values)
            elif step % 2:
                self.run.log(values, step)
            else:
                self.run.log(values, step=step)
        elif kind in {"step", "index"}:
            step = self.run.step(samples=arguments[0]) if kind == "step" else self.run.step(None, arguments[0])
            with step:
                self.now[0] += 3
        elif kind == "enter":
            self.open.append(self.run.phase(arguments[0]))
            self.open[-1].__enter__()
        elif self.open:
            self.open.pop().__exit__(None, None, None)


@pytest.mark.usefixtures("ticks")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(CALLS, max_size=40))
def test_the_ring_is_the_same(request, tmp_path_factory, monkeypatch, capsys, calls):
    """Whatever a program calls, both write the same bytes, and count and say the same."""
    module = native.available()
    if module is None:
        pytest.skip("needs the hot path in C, which was not built here")
    rings = []
    request.addfinalizer(lambda: module.set_clock(None))
    for chosen in (None, module):
        native.use(chosen)
        now = [1_000]
        monkeypatch.setattr("stepscope.recorder.hotpath.monotonic_ns", lambda now=now: now[0])
        module.set_clock(lambda now=now: now[0])
        rig = Rig(tmp_path_factory.mktemp("ring"))
        driver = Driver(rig, now)
        for call in calls:
            driver.make(call)
        rings.append((bytes(rig.run._buffer[4096:]), rig.refused, rig.schema.read_bytes(), capsys.readouterr().err))
    assert rings[0] == rings[1]


def test_only_python_where_it_is_asked_for(monkeypatch):
    """STEPSCOPE_PURE leaves the hot path as it is written in Python."""
    monkeypatch.setenv(native.PURE, "1")
    assert native.available() is None


def test_both_can_take_over_from_each_other(rig):
    """The two work on the same objects: a run may change between them at any time."""
    module = native.available()
    if module is None:
        pytest.skip("needs the hot path in C, which was not built here")
    for number in range(300):
        native.use(module if number % 3 else None)
        with rig.run.step(samples=2), rig.run.phase("forward"):
            rig.run.log({"a": float(number)})
    rows = [row for _, row in rig.rows()]
    assert [row["a"] for row in rows if "a" in row] == [float(number) for number in range(300)][-len(rows) // 2 :]
    assert [sequence for _, sequence, *_ in rig.records()][-1] == 599
