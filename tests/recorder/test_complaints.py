from __future__ import annotations

import io
import sys

import pytest

from stepscope.recorder.complaints import Complaints


def test_once_per_kind_and_counted():
    """The first complaint of a kind is printed; all are counted."""
    stream = io.StringIO()
    complaints = Complaints(stream)
    for message in ("first", "second", "third"):
        complaints.say("kind", message)
    complaints.say("other", "fourth")
    assert stream.getvalue() == "stepscope: first\nstepscope: fourth\n"
    assert complaints.counts == {"kind": 3, "other": 1}


class Terminal:
    def __init__(self, error):
        self.error = error

    def write(self, _):
        raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("closed"), RuntimeError("reentrant call")])
def test_broken_terminal(error):
    """A terminal that is gone, closed or in the middle of a write does not disturb the training."""
    complaints = Complaints(Terminal(error))
    complaints.say("kind", "hello")
    assert complaints.counts == {"kind": 1}


def test_no_terminal(monkeypatch):
    """A process without stderr is not disturbed either."""
    monkeypatch.setattr(sys, "stderr", None)
    complaints = Complaints()
    complaints.say("kind", "hello")
    assert complaints.counts == {"kind": 1}
