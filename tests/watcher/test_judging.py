"""A judgement in a child: its verdict becomes an event, and whatever goes wrong costs only the verdict."""

from __future__ import annotations

import json

import pytest

from stepscope.watcher import judging
from stepscope.watcher.journal import Journal
from stepscope.watcher.judging import Judging, verdict_of
from tests.integration.processes import until
from tests.store.recorded import make_folder

pytestmark = pytest.mark.processes


@pytest.fixture
def folder(tmp_path):
    made = make_folder(tmp_path / "run")
    made.run_file.write_text(json.dumps({"format": 1, "id": "run", "world_size": 2, "created": 0}))
    return made


def test_the_verdict_on_a_run_has_no_second_kind(folder):
    """The event has a kind of its own; the kind of hang is its verdict."""
    facts = verdict_of(str(folder.path))
    assert "kind" not in facts
    assert facts["verdict"] in ("none", "unknown")
    assert {"ranks", "waiting", "text", "evidence", "remedy", "confidence"} <= set(facts)


def test_a_child_judges(folder, tmp_path):
    """The verdict comes once, and a second start meanwhile changes nothing."""
    child = Judging(folder.path, Journal(tmp_path / "log"))
    child.start(0.0)
    child.start(0.0)
    assert child.busy
    facts = until(lambda: child.poll(0.0), "the verdict")
    assert facts == verdict_of(str(folder.path))
    assert (child.poll(0.0), child.busy) == (None, False)


def test_a_child_that_fails_or_hangs_is_noted(folder, tmp_path, monkeypatch):
    """With the command that people can use."""
    log = tmp_path / "log"
    child = Judging(folder.path, Journal(log))
    monkeypatch.setattr(judging, "arguments", lambda *_: ["-c", "import sys; sys.exit(3)"])
    child.start(0.0)
    until(lambda: child.poll(0.0) or not child.busy, "its end")
    assert "exit code 3; see `stepscope hang`" in log.read_text()
    other = Judging(folder.path, Journal(tmp_path / "other"))
    monkeypatch.setattr(judging, "arguments", lambda *_: ["-c", "import time; time.sleep(600)"])
    other.start(0.0)
    assert other.poll(61.0) is None
    assert "it took too long" in (tmp_path / "other").read_text()
    monkeypatch.setattr(judging, "interpreter", lambda: "/no/such/python")
    other.start(0.0)
    assert not other.busy
