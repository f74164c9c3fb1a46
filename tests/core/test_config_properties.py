"""Properties of the configuration loader under random input."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.config import load, load_or_default
from stepscope.core.settings import KEYS, PATHS
from stepscope.core.yaml_text import YamlRefusal, read_text

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=2)
WORDS = st.sampled_from(sorted({part for path in PATHS for part in path.split(".")} | set(PATHS)))
NAMES = WORDS | st.text(max_size=5) | st.sampled_from(["_target_", "callbacks", "", ".", "a..b", "__"])
TREES = st.recursive(
    SCALARS | st.sampled_from(["90%", "8 MiB", "5min", "x.ProfilerCallback"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.integers(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.dictionaries(NAMES, TREES, max_size=5))
def test_random_settings_never_raise(settings):
    """Whatever is given: a complete configuration of plain data."""
    config = load_or_default(settings=settings)
    assert set(KEYS) <= set(config.values)
    json.dumps(config.values, allow_nan=False)


@pytest.mark.slow
@given(st.dictionaries(NAMES, TREES, max_size=5))
def test_values_load_to_the_same_values(settings):
    """A configuration survives being loaded again from its values, without an error."""
    config = load_or_default(settings=settings)
    assert load(settings=config.values).values == config.values


@given(st.text(alphabet="ab:-[]{}&*!#|>?%@,\"'~ \n\t\\0.e", max_size=40))
def test_random_text_is_read_or_refused(text):
    """The reader knows two ends: a mapping, or a refusal."""
    with suppress(YamlRefusal):
        assert isinstance(read_text(text).data, dict)
