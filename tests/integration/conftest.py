"""What the tests with real processes start from."""

from __future__ import annotations

import pytest

from tests.integration.followers import Followers
from tests.integration.processes import Bench


@pytest.fixture
def bench(clean_environment, tmp_path):
    """Start trainers of which nothing is left after the test."""
    made = Bench(tmp_path)
    yield made
    made.close()


@pytest.fixture
def followers(clean_environment, tmp_path):
    """Return what starts followers and writers."""
    made = Followers(tmp_path)
    yield made
    made.close()
