"""What the watcher's tests share."""

from __future__ import annotations

import pytest

from tests.watcher.stage import Stage


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """A run and a watcher that is stepped by hand."""
    return Stage(tmp_path, monkeypatch)
