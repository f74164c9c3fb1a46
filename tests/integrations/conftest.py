"""What the tests of the frameworks share."""

from __future__ import annotations

import pytest


@pytest.fixture
def one_thread(tmp_path, monkeypatch):
    """Small tensors on a shared machine: more threads only wait for each other. Files go to the test's folder."""
    import torch

    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
