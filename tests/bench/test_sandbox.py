from __future__ import annotations

import os

from bench.sandbox import sandbox


def test_a_users_settings_stay_outside(monkeypatch):
    """Nothing that the user has set changes a figure, but for the choice of the recorder's Python version."""
    monkeypatch.setenv("STEPSCOPE_CONFIG", "mine.yaml")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("STEPSCOPE_PURE", "1")
    with sandbox() as folder:
        assert not {"STEPSCOPE_CONFIG", "WANDB_MODE"} & set(os.environ)
        assert (os.environ["STEPSCOPE_PURE"], os.environ["STEPSCOPE_DIR"]) == ("1", str(folder / "runs"))
    assert os.environ["WANDB_MODE"] == "online"
    assert not folder.exists()
