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
    """A server over them, on loopback and without a token."""
    found = started(root)
    ready(found)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def client(server):
    """A client of it."""
    return Client(server.port)


@pytest.fixture(scope="module")
def guarded(root, tmp_path_factory):
    """A server that asks for a token."""
    found = started(root, token=True, token_file=tmp_path_factory.mktemp("token") / "token")
    ready(found)
    yield found
    found.stop()
