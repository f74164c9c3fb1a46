"""The deadline of calls: one thread cuts the connections of many calls, each at its own time."""

from __future__ import annotations

import http.client
import socket
import threading

import pytest

from stepscope.exporters.sinks.deadline import Deadline
from tests.integration.processes import until


@pytest.fixture
def pair():
    """A connection as `http.client` has it, and its other end."""
    ours, theirs = socket.socketpair()
    connection = http.client.HTTPConnection("localhost")
    connection.sock = ours
    yield connection, theirs
    connection.close()
    theirs.close()


def watchers():
    return {thread for thread in threading.enumerate() if thread.name == "deadline"}


def is_cut(theirs, seconds):
    theirs.settimeout(seconds)
    try:
        return theirs.recv(1) == b""
    except TimeoutError:
        return False


def test_a_call_that_takes_too_long_is_cut(pair):
    """Its connection ends, and the call is told why."""
    connection, theirs = pair
    deadline = Deadline()
    deadline.begin(connection, 0.02)
    assert is_cut(theirs, 20)
    assert deadline.is_over


def test_a_call_that_has_ended_is_not_cut(pair):
    """What was over in time keeps its connection."""
    connection, theirs = pair
    deadline = Deadline()
    deadline.begin(connection, 0.05)
    deadline.end()
    assert not is_cut(theirs, 0.2)
    assert not deadline.is_over


def test_a_shorter_deadline_does_not_wait_for_an_earlier_longer_one(pair):
    """The thread that sleeps for a long call wakes for a short one after it; no second one is started."""
    connection, theirs = pair
    deadline, before = Deadline(), watchers()
    deadline.begin(connection, 600)
    until(lambda: deadline._wakes > 0, "a thread that sleeps")
    deadline.end()
    deadline.begin(connection, 0.5)
    assert len(watchers() - before) == 1
    assert is_cut(theirs, 60)


def test_a_deadline_serves_the_next_call_after_a_cut(pair):
    """The second call is not over because the first one was."""
    connection, theirs = pair
    deadline = Deadline()
    deadline.begin(connection, 0.02)
    assert is_cut(theirs, 20)
    deadline.end()
    connection.close()
    connection.sock, other = socket.socketpair()
    with other:
        deadline.begin(connection, 600)
        assert not deadline.is_over
        assert not is_cut(other, 0.1)
        deadline.end()
