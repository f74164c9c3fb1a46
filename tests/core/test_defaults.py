from __future__ import annotations

import pytest

from stepscope.core.config import load
from stepscope.core.defaults import VALUES, Defaults
from stepscope.core.settings import SESSION


@pytest.mark.parametrize("path", VALUES)
def test_defaults_are_those_of_the_configuration(path):
    """What holds without a configuration is what an empty one gives."""
    assert Defaults().get(path) == load().get(path)


def test_every_key_that_is_built_is_there_or_only_changes_others():
    """A new key of the session cannot be forgotten here; modes only change the defaults of others."""
    modes = {"recorder.high_frequency", "recorder.distributed", "watcher.batch"}
    assert {key.path for key in SESSION} == VALUES.keys() | modes


def test_the_root_of_the_runs_can_be_named():
    """STEPSCOPE_DIR is all that can be set without a configuration, and it is shown."""
    named = Defaults("/data/runs")
    assert (named.get("store.dir"), named.shown()) == ("/data/runs", {"store.dir": "/data/runs"})
    assert Defaults().shown() == {}
