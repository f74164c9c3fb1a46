"""The fake NVIDIA driver as a fixture."""

from __future__ import annotations

import shutil

import pytest

from tests.nvml.build import FakeDriver, build


@pytest.fixture(name="driver")
def fake_driver(tmp_path, tmp_path_factory, monkeypatch):
    """Give the test a fake driver with 8 GPUs that every process it starts will load."""
    if not (shutil.which("gcc") or shutil.which("cc")):
        pytest.skip("needs a C compiler")
    cached = tmp_path_factory.getbasetemp() / "nvml"
    cached.mkdir(exist_ok=True)
    driver = FakeDriver(build(cached), tmp_path / "nvml-state")
    for name, value in driver.environment().items():
        monkeypatch.setenv(name, value)
    return driver
