"""The guard of the server, asked without a network."""

from __future__ import annotations

import asyncio
import os

import pytest

from stepscope.core import access
from stepscope.web.access_policy import AccessPolicy
from stepscope.web.guard import MAX_HEADERS, MAX_PATH, RequestGuard

HOST = (b"host", b"localhost")


def answers(app, scope):
    """Return the messages that a guarded application sends for one request."""
    sent = []

    async def ask():
        async def send(message):
            sent.append(message)

        await RequestGuard(app, AccessPolicy("localhost", "token"))(scope, None, send)

    asyncio.run(ask())
    return sent


def test_a_connection_that_is_no_request_is_closed():
    """A WebSocket is closed before anything of ours sees it."""
    sent = answers(None, {"type": "websocket"})
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_start_and_end_of_the_server_pass():
    """The messages of the server itself reach the application."""
    seen = []

    async def app(scope, _receive, _send):
        seen.append(scope["type"])

    assert answers(app, {"type": "lifespan"}) == []
    assert seen == ["lifespan"]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"raw_path": b"/" + b"a" * MAX_PATH}, 414),
        ({"headers": [HOST, *[(b"a", b"b")] * MAX_HEADERS]}, 431),
        ({"path": "/a\x00b"}, 400),
    ],
)
def test_a_request_that_is_too_large_or_odd_is_refused_unread(change, status):
    """A long path, too many headers and a zero byte are refused before the application is asked."""
    scope = {"type": "http", "path": "/", "raw_path": b"/", "query_string": b"", "headers": [HOST], "method": "GET"}
    assert answers(None, {**scope, **change})[0]["status"] == status


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give a file to somebody else")
def test_a_token_file_of_somebody_else_is_not_used(tmp_path):
    """A file that another user has put in place is refused, and no descriptor stays open."""
    path = tmp_path / "token"
    path.touch()
    os.chown(path, 65534, 65534)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(PermissionError, match="another user"):
        access.write_private(path, "secret")
    assert len(os.listdir("/proc/self/fd")) == len(before)
