"""What the recorder's tests share."""

from __future__ import annotations

import pytest

from tests.recorder.rig import Rig


@pytest.fixture
def rig(tmp_path):
    """A recorder on a small ring."""
    return Rig(tmp_path)


@pytest.fixture
def ticks(monkeypatch):
    """A clock that the test moves: nanoseconds, in a list of one."""
    now = [1_000]
    monkeypatch.setattr("stepscope.recorder.hotpath.monotonic_ns", lambda: now[0])
    return now
