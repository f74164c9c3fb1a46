from __future__ import annotations

import os
import subprocess

import pytest

from stepscope.store.layout import Writer
from stepscope.watcher import sealing as sealing_module
from stepscope.watcher.journal import Journal
from stepscope.watcher.sealing import RETRIES, RETRY_AFTER, RETRY_AT_END, Sealing, lower_priority
from tests.store.recorded import Recorded


@pytest.fixture
def recorded(tmp_path):
    made = Recorded(tmp_path)
    made.run.log({"a": 1.0})
    made.drain()
    made.drain_.rotate()
    return made


@pytest.fixture
def sealing(recorded):
    return Sealing(recorded.folder, Journal(recorded.folder.path / "watcher.log"))


class FakeChild:
    """A child that ends when the test says so."""

    made: list[FakeChild] = []  # noqa: RUF012 - emptied by the fixture

    def __init__(self, command, **_):
        self.command, self.code, self.stderr = command, None, None
        self.made.append(self)

    def poll(self):
        return self.code


@pytest.fixture
def children(monkeypatch):
    FakeChild.made = []
    monkeypatch.setattr(sealing_module.subprocess, "Popen", FakeChild)
    return FakeChild.made


def test_child_that_seals(sealing, recorded):
    """A real child seals the tail, deletes it, and the rows read as before."""
    sealing.add(recorded.writer, 0)
    sealing.poll(0.0)
    assert not sealing.idle()
    assert sealing._child.wait(240) == 0
    sealing.poll(1.0)
    assert sealing.idle()
    assert recorded.folder.all_tails() == []
    assert len(recorded.folder.units()) == 1
    assert recorded.past().series("a").value.tolist() == [1.0]


def test_child_that_fails(sealing, recorded, monkeypatch):
    """A child that fails says why in the journal, and the tail stays."""
    sealing.add(Writer("node", 0), 0)
    monkeypatch.setattr(sealing_module, "arguments", lambda *_: ["-c", "raise SystemExit('no space')"])
    sealing.poll(0.0)
    sealing._child.wait(240)
    sealing.poll(1.0)
    assert "cannot seal: no space" in (recorded.folder.path / "watcher.log").read_text()
    assert len(recorded.folder.all_tails()) == 1


def test_child_that_seals_but_cannot_merge(sealing, recorded, monkeypatch):
    """What a child says although it has sealed goes to the journal, and nothing is tried again."""
    sealing.add(Writer("node", 0), 0)
    monkeypatch.setattr(sealing_module, "arguments", lambda *_: ["-c", "import sys; sys.stderr.write('cannot merge')"])
    sealing.poll(0.0)
    sealing._child.wait(240)
    sealing.poll(1.0)
    assert "cannot merge" in (recorded.folder.path / "watcher.log").read_text()
    assert sealing.idle()


def test_one_child_at_a_time(sealing, children):
    """The next seal starts when the one before has ended."""
    sealing.add(Writer("node", 0), 0)
    sealing.add(Writer("node", 0), 1)
    for _ in range(3):
        sealing.poll(0.0)
    assert [child.command[-1] for child in children] == ["0"]
    children[0].code = 0
    sealing.poll(0.0)
    assert [child.command[-1] for child in children] == ["0", "1"]
    children[1].code = 0
    sealing.poll(0.0)
    assert sealing.idle()


def test_retries(sealing, children):
    """A failed seal is tried again after a while; after three failures nobody waits for it any more."""
    sealing.add(Writer("node", 0), 0)
    now = 0.0
    for attempt in range(RETRIES):
        assert not sealing.idle()
        sealing.poll(now)
        assert len(children) == attempt + 1
        children[-1].code = 1
        sealing.poll(now)
        sealing.poll(now + RETRY_AFTER - 1)
        assert len(children) == attempt + 1
        now += RETRY_AFTER
    assert sealing.idle()


def test_a_seal_that_fails_keeps_a_lonely_watcher_for_seconds_only(sealing, children):
    """Without a trainer a failed seal is tried again soon, so that the watcher ends within 30 s."""
    sealing.add(Writer("node", 0), 0)
    for attempt in range(RETRIES):
        sealing.poll(attempt * RETRY_AT_END, alone=True)
        assert len(children) == attempt + 1
        children[-1].code = 1
        sealing.poll(attempt * RETRY_AT_END, alone=True)
    assert sealing.idle()
    assert RETRIES * RETRY_AT_END < 30


def test_success_forgets_the_failures(sealing, children):
    """After a success the count of failures starts anew."""
    sealing.add(Writer("node", 0), 0)
    for code, now in ((1, 0.0), (1, 100.0), (0, 200.0)):
        sealing.poll(now)
        children[-1].code = code
        sealing.poll(now)
    sealing.add(Writer("node", 0), 1)
    assert not sealing.idle()


def test_no_child_at_all(sealing, recorded, monkeypatch):
    """Where no process can be started the rows stay readable in the tail."""

    def refuse(*_, **__):
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    sealing.add(recorded.writer, 0)
    sealing.poll(0.0)
    assert "cannot start sealing: no more processes" in (recorded.folder.path / "watcher.log").read_text()
    assert recorded.past().series("a").value.tolist() == [1.0]


def test_priority(monkeypatch):
    """Our programs give way to the training; a system without priorities is left as it is."""
    asked = []
    monkeypatch.setattr(os, "nice", asked.append)
    lower_priority(10)
    assert asked == [10]

    def refuse(_):
        raise OSError("no")

    monkeypatch.setattr(os, "nice", refuse)
    lower_priority(10)
