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


def test_a_shield_reports_an_error_and_does_not_raise_it():
    """An exception inside a shield becomes one line with its remedy; interrupts and exits go on."""
    stream = io.StringIO()
    complaints = Complaints(stream)
    with complaints.shield("kind", "read it", "it is left out") as shield:
        raise ValueError("broken")
    assert shield.failed
    assert stream.getvalue() == "stepscope: cannot read it: ValueError: broken; it is left out\n"
    with complaints.shield("kind", "read it") as calm:
        pass
    assert not calm.failed
    with pytest.raises(KeyboardInterrupt), complaints.shield("kind", "read it"):
        raise KeyboardInterrupt
