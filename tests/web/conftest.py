"""One server for the tests of a module that only look."""

from __future__ import annotations

import pytest

from tests.web.served import Client, make_runs, ready, started


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with a few runs."""
    folder = tmp_path_factory.mktemp("served") / "runs"
    make_runs(folder)
    return folder


@pytest.fixture(scope="module")
def server(root):
    """A server over them, on loopback."""
    found = started(root)
    ready(found)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def client(server):
    """A client of it, as its owner."""
    return Client(server)
