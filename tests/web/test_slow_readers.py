"""Clients that begin something and do not go on: what they hold is free again soon."""

from __future__ import annotations

import socket

import pytest

from stepscope.web import downloads, protocol
from tests.integration.processes import until
from tests.web.served import RUN, Client, ready, started

PATH = f"/api/export?run={RUN.replace('/', '%2F')}&format=csv"


def begin(server, path=PATH, *more):
    """Ask for something and read nothing of it."""
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.connect(("127.0.0.1", server.port))
    head = (f"GET {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {server.policy.token}", *more, "", "")
    link.sendall("\r\n".join(head).encode())
    return link


def endless(stream):
    """Write until nobody reads."""
    while True:
        stream.write(b"x" * 65_536)


def free_slots():
    """Return how many downloads may begin now."""
    return downloads._FREE._value


@pytest.fixture
def hasty(root, monkeypatch):
    """A server that waits a moment for readers, and whose downloads never end."""
    monkeypatch.setattr(protocol.BoundedProtocol, "_left", 0.3)
    monkeypatch.setattr(protocol, "READ_SECONDS", 0.3)
    server = started(root)
    ready(server)
    yield server
    server.stop()
    until(lambda: free_slots() == downloads.AT_ONCE, "free slots for the next test")


def test_downloads_that_nobody_reads_give_their_slots_back(hasty, monkeypatch):
    """Two clients that begin a download and never read are cut off, and a third gets its own."""
    monkeypatch.setattr(downloads, "_writer", lambda *_words: endless)
    held = [begin(hasty), begin(hasty)]
    until(lambda: free_slots() == 0, "two downloads")
    assert Client(hasty).get(PATH).status == 503
    until(lambda: free_slots() == downloads.AT_ONCE, "free slots")
    monkeypatch.undo()
    assert Client(hasty).get(PATH).status == 200
    for link in held:
        link.close()


def test_a_reader_that_goes_on_keeps_its_download(root, monkeypatch):
    """What is read slowly but steadily is never cut off: reading earns time."""
    monkeypatch.setattr(downloads, "_writer", lambda *_words: lambda stream: stream.write(b"x" * 5_000_000))
    server = started(root)
    try:
        ready(server)
        assert len(Client(server).get(PATH).body) == 5_000_000
    finally:
        server.stop()


def test_early_disconnects_give_their_slots_back(hasty):
    """A client that leaves before the first byte holds no slot, however often."""
    for _ in range(30):
        begin(hasty).close()
    until(lambda: free_slots() == downloads.AT_ONCE, "free slots")
    assert until(lambda: Client(hasty).get(PATH).status == 200, "a download")


@pytest.mark.parametrize("more", [("Connection: close",), ()])
def test_an_answer_that_nobody_reads_holds_no_connection(hasty, monkeypatch, more):
    """Whether it is kept alive or closed, a connection whose answer stays unread is cut off."""
    monkeypatch.setattr(downloads, "_writer", lambda *_words: lambda stream: stream.write(b"x" * 9_000_000))
    connections = hasty._uvicorn.server_state.connections
    link = begin(hasty, PATH, *more)
    until(lambda: len(connections) == 1, "its connection")
    assert until(lambda: not connections, "its end")
    link.close()
