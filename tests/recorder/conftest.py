"""What the recorder's tests share."""

from __future__ import annotations

import pytest

from stepscope.recorder import native
from tests.recorder.rig import Rig


@pytest.fixture(autouse=True, params=["python", "native"])
def hot(request):
    """Every rule holds for the hot path in Python and for its twin in C."""
    module = native.available() if request.param == "native" else None
    if request.param == "native" and module is None:
        pytest.skip("needs the hot path in C, which was not built here (no compiler, or another machine)")
    before = native.available() if native.is_used() else None
    native.use(module)
    yield module
    native.use(before)


@pytest.fixture
def rig(tmp_path):
    """A recorder on a small ring."""
    return Rig(tmp_path)


@pytest.fixture
def ticks(monkeypatch, hot):
    """A clock that the test moves: nanoseconds, in a list of one."""
    now = [1_000]
    monkeypatch.setattr("stepscope.recorder.hotpath.monotonic_ns", lambda: now[0])
    if hot is not None:
        hot.set_clock(lambda: now[0])
    yield now
    if hot is not None:
        hot.set_clock(None)
