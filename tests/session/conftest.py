"""What the session's tests share."""

from __future__ import annotations

import pytest

from stepscope.session import current, opening
from stepscope.session import run as run_module
from stepscope.session.watching import Watch


class Started(list):
    """The watchers that would have been started."""


@pytest.fixture
def started(monkeypatch):
    """No process is started, and the end of a run waits for nobody."""
    calls = Started()

    class QuietWatch(Watch):
        def __init__(self, folder, arguments, **more):
            super().__init__(folder, arguments, start=lambda *values: calls.append(values), **more)

    monkeypatch.setattr(opening, "Watch", QuietWatch)
    monkeypatch.setattr("stepscope.store.salvage.GRACE_SECONDS", 0.0)  # nobody comes, so nobody is waited for
    monkeypatch.setattr(run_module, "END_SECONDS", 0)
    monkeypatch.setattr(current, "END_SECONDS", 0)
    fresh = current.Current()
    fresh._hooked = True  # this process shall not call us when it ends
    monkeypatch.setattr(opening, "CURRENT", fresh)
    monkeypatch.setattr(current, "CURRENT", fresh)
    yield calls
    for run in fresh._runs:
        run.finish()
