"""The watcher and the sender of its run: started where nobody sends, and again after it was killed."""

from __future__ import annotations

import itertools
import json
import os

import pytest

from stepscope.core.places import SINKS_SUFFIX
from stepscope.core.spawn import SpawnError
from stepscope.exporters.sinks.address import address_of
from stepscope.store.sinks import SinkState, hold
from stepscope.watcher.journal import Journal
from stepscope.watcher.sending import FAREWELL, LONGEST_WAIT, SenderBrief, Sending
from tests.exporters.recorded import make_run

NODE = "node.abc"
URL = "trackio://mnist"
KEY = address_of(URL).key


class Child:
    """A sender that ends when a test says so."""

    returncode = None

    def poll(self):
        return self.returncode


class Starter:
    """Starts senders that do nothing, and keeps their briefs."""

    def __init__(self):
        self.briefs, self.children, self.error = [], [], None

    def __call__(self, brief):
        if self.error:
            raise self.error
        self.briefs.append(brief)
        self.children.append(Child())
        return self.children[-1]


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path)


@pytest.fixture
def starter():
    return Starter()


@pytest.fixture
def sending(folder, tmp_path, starter):
    ring = tmp_path / "0.ring"
    ring.with_suffix(SINKS_SUFFIX).write_text(json.dumps({"exporters.sinks": [URL, "nonsense"], "cwd": "/"}))
    found = Sending(folder, NODE, Journal(tmp_path / "watcher.log"), starter)
    found.attach(ring)
    return found


def test_a_run_without_sinks_starts_nothing(folder, tmp_path, starter):
    """Without settings beside the ring there is no sender, no metric, and nothing to wait for."""
    sending = Sending(folder, NODE, Journal(tmp_path / "watcher.log"), starter)
    sending.attach(tmp_path / "0.ring")
    sending.poll(0.0)
    assert not starter.briefs
    assert sending.metrics() == {}
    assert not sending.busy(0.0, alone=True)


def test_a_sender_is_started_once_with_the_settings_of_the_run(sending, starter, folder, tmp_path):
    """Its brief names run, node and sinks; a sink that is none is in the log."""
    for now in range(10):
        sending.poll(float(now))
    (brief,) = starter.briefs
    assert (brief.run, brief.node, brief.settings["exporters.sinks"][0]) == (str(folder.path), NODE, URL)
    assert SenderBrief.parse(brief.line()) == brief
    assert "cannot use sink 2 of exporters.sinks" in (tmp_path / "watcher.log").read_text()


def test_a_killed_sender_is_started_again_with_growing_pauses(sending, starter):
    """The pause doubles up to a minute, so that a sender that cannot run does not load the machine."""
    starts = []
    for now in range(0, 400, 2):
        sending.poll(float(now))
        if len(starter.briefs) > len(starts):
            starts.append(now)
            starter.children[-1].returncode = -9
    pauses = [after - before for before, after in itertools.pairwise(starts)]
    assert pauses[:3] == sorted(pauses[:3])
    assert pauses[-1] >= LONGEST_WAIT


def test_a_sender_of_an_earlier_watcher_goes_on(sending, starter, folder):
    """Where another process holds the lock of every sink, none is started."""
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        hold(folder, KEY, NODE)
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    sending.poll(0.0)
    assert not starter.briefs
    os.write(done[1], b"x")
    os.waitpid(child, 0)
    sending.poll(10.0)
    assert len(starter.briefs) == 1
    for end in (*ready, *done):
        os.close(end)


def test_the_state_of_each_sink_is_a_metric_of_the_run(sending, folder):
    """How far a sink is comes from what its sender wrote."""
    SinkState(NODE, KEY, sent_rows=7, refused_rows=1, behind_rows=3, behind_seconds=4.5).save(folder)
    assert sending.metrics() == {
        "stepscope/sink/trackio/behind_rows": 3.0,
        "stepscope/sink/trackio/behind_seconds": 4.5,
        "stepscope/sink/trackio/sent_rows": 7.0,
        "stepscope/sink/trackio/refused_rows": 1.0,
    }


def test_a_watcher_stays_a_moment_for_a_sender_that_cannot_start(sending, starter):
    """After its last trainer it tries for some seconds, then ends."""
    starter.error = SpawnError("no more processes")
    sending.poll(0.0)
    assert not sending.busy(0.0, alone=False)
    assert sending.busy(1.0, alone=True)
    assert not sending.busy(2.0 + FAREWELL, alone=True)
    starter.error = None
    sending.poll(60.0)
    assert not sending.busy(60.0, alone=True)
    sending.close()


def test_damaged_settings_are_noted(folder, tmp_path, starter):
    """A file that cannot be read costs the sinks, not the run."""
    ring = tmp_path / "0.ring"
    ring.with_suffix(SINKS_SUFFIX).write_text("[")
    Sending(folder, NODE, Journal(tmp_path / "watcher.log"), starter).attach(ring)
    assert "cannot read the sinks of the run" in (tmp_path / "watcher.log").read_text()
