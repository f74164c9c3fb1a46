"""Environment variables as settings."""

from __future__ import annotations

import pytest

from stepscope.core.config import load, load_or_default
from stepscope.core.environment import ours, path_of, variable_of
from stepscope.core.errors import UsageError
from stepscope.core.settings import KEYS


@pytest.mark.parametrize(
    ("name", "text", "path", "value"),
    [
        ("STEPSCOPE_STORE__MAX_RUNS", "20", "store.max_runs", 20),
        ("STEPSCOPE_STORE__SEAL_BYTES", "8 MiB", "store.seal_bytes", 8 << 20),
        ("STEPSCOPE_RECORDER__WATCH__GRADIENTS", "off", "recorder.watch.gradients", False),
        ("STEPSCOPE_WEB__METRICS", "[loss, accuracy]", "web.metrics", ("loss", "accuracy")),
        ("STEPSCOPE_PERFORMANCE_TUNING__HIGH_FREQUENCY_MODE", "true", "recorder.high_frequency", True),
    ],
)
def test_a_variable_sets_a_setting(name, text, path, value):
    """Two underscores stand for a dot; the text is read as the kind of the key wants it."""
    config = load(environ={name: text})
    assert (config.get(path), config.sources[path]) == (value, name)


def test_every_setting_has_a_variable():
    """Each path is found again from its variable."""
    for path in KEYS:
        assert path_of(variable_of(path)) == path


def test_a_variable_wins_over_a_file_and_yields_to_a_keyword(tmp_path):
    """Files, STEPSCOPE_DIR, variables, keywords: a later source wins."""
    file = tmp_path / "x.yaml"
    file.write_text("store: {max_runs: 1, max_age_days: 1}")
    environ = {"STEPSCOPE_STORE__MAX_RUNS": "2", "STEPSCOPE_STORE__MAX_AGE_DAYS": "2", "STEPSCOPE_DIR": "a"}
    config = load([file], {"store__max_runs": 3}, environ=environ | {"STEPSCOPE_STORE__DIR": "b"})
    assert [config.get(f"store.{key}") for key in ("max_runs", "max_age_days", "dir")] == [3, 2.0, "b"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("STEPSCOPE_STORE__MAX_RUN", "did you mean 'STEPSCOPE_STORE__MAX_RUNS'?"),
        ("STEPSCOPE_STOER__DIR", "did you mean 'STEPSCOPE_STORE__DIR'?"),
        ("STEPSCOPE_STORE_MAX_RUNS", "did you mean STEPSCOPE_STORE__MAX_RUNS?"),
        ("STEPSCOPE_DRI", "did you mean STEPSCOPE_DIR?"),
        ("STEPSCOPE_STORE__SEAL_BYTES", "'many', not a size"),
    ],
)
def test_a_variable_that_sets_nothing_is_told(name, told):
    """The variable is named, with the nearest one that sets something; the rest is used."""
    config = load_or_default(environ={name: "many", "STEPSCOPE_STORE__MAX_AGE_DAYS": "2"})
    [notice] = config.notices
    assert name in notice
    assert told in notice
    assert config.get("store.max_age_days") == 2.0


def test_variables_of_other_use_are_no_settings():
    """Those with names of their own, and those of other programs, are left alone."""
    plain = {"STEPSCOPE_DIR": "a", "STEPSCOPE_RUN_ID": "x", "STEPSCOPE_ALERT_RULE": "y", "OTHER__KEY": "z"}
    assert ours(plain) == []
    with pytest.raises(UsageError, match="STEPSCOPE_NO__SUCH"):
        load(environ=plain | {"STEPSCOPE_NO__SUCH": "1"})
