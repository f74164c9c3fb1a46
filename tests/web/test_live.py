"""Live runs: frames hold what is new, once, the same bytes for all who ask."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from stepscope.store.drain import Drain, OwnRows
from stepscope.store.parquet import connect
from stepscope.store.states import NodeState, RankState
from stepscope.web import live
from stepscope.web.live import CursorExpiredError, FollowedRun, FollowedRuns, few
from tests.exporters.recorded import CREATED, PAIR, WRITER, make_run, points_of, tell
from tests.web.messages import messages, rows
from tests.web.served import Client, ready, started


class Training:
    """A run that goes on: rows of its watcher, and its heartbeat."""

    def __init__(self, root):
        self.folder = make_run(root, config={"max_steps": 100})
        self.own = OwnRows(0, 0)
        self.drain = Drain(self.folder, WRITER, self.own)
        self.number = 0
        self.beat()

    def beat(self, state="running"):
        """Write the watcher's state."""
        rank = RankState(state=state, step=self.number, started=CREATED)
        now = int(time.time() * 1e6)
        NodeState(WRITER.node, 0, 1, now, 1, "", ended=state != "running", ranks={0: rank}).save(self.folder)

    def log(self, count=1, **values):
        """Append rows."""
        for _ in range(count):
            self.own.add(values or {"loss": float(self.number)}, self.number * 1_000_000)
            self.number += 1
        self.drain.write_own(PAIR)


@pytest.fixture
def training(tmp_path):
    return Training(tmp_path)


@pytest.fixture
def channel(training, monkeypatch):
    monkeypatch.setattr(live, "PACE", 0.0)
    training.log(3)
    found = FollowedRun(training.folder.path, connect())
    yield found
    found.close()


def told(channel, cursor):
    channel.poll()
    data = channel.since(cursor)
    return [] if data is None else messages(data)


@pytest.mark.promise("S1-049")
def test_a_frame_has_the_new_points(channel, training):
    """New points come once, under the number that the frame gives their curve; then there is nothing new."""
    hello = channel.hello()
    training.log(2)
    training.log(1, accuracy=0.5)
    ((head, payload),) = told(channel, hello["cursor"])
    found = rows(head, payload)
    names = {number: name for number, name, _, _ in head["new"]}
    values = {name: found["last"][found["curve"] == number].tolist() for number, name in names.items()}
    assert values == {"loss": [3.0, 4.0], "accuracy": [0.5]}
    assert found["count"].tolist() == [1, 1, 1]
    assert told(channel, head["cursor"]) == []
    assert head["status"]["names"] == 2


def test_who_fell_behind_gets_every_frame_in_order(channel, training):
    """Frames since a cursor follow one another; the same bytes for everybody."""
    first = channel.hello()["cursor"]
    for _ in range(3):
        training.log()
        channel.poll()
    frames = messages(channel.since(first))
    assert [head["frame"] for head, _ in frames] == [2, 3, 4]
    assert channel.since(first) == channel.since(first)
    middle = frames[1][0]["cursor"]
    assert [head["frame"] for head, _ in messages(channel.since(middle))] == [4]


@pytest.mark.parametrize("cursor", ["", "x", "0-0", "00000000-5", "{gen}-x", "{gen}--1"])
def test_a_cursor_of_another_time_is_refused(channel, cursor):
    """Whoever comes with a cursor that is not ours starts over."""
    own = channel.cursor.partition("-")[0]
    with pytest.raises(CursorExpiredError):
        channel.since(cursor.format(gen=own))


def test_old_frames_are_forgotten(channel, training, monkeypatch):
    """Frames are kept for a while and up to a size; who is further behind starts over."""
    monkeypatch.setattr(live, "FRAMES", 2)
    first = channel.hello()["cursor"]
    for _ in range(5):
        training.log()
        channel.poll()
    with pytest.raises(CursorExpiredError):
        channel.since(first)


def test_many_points_become_few_rows(channel, training):
    """A burst is told in a few buckets of each curve that hold all its points, spikes too."""
    cursor = channel.hello()["cursor"]
    training.log(500)
    training.log(1, loss=1e9)
    training.log(500)
    ((head, payload),) = told(channel, cursor)
    found = rows(head, payload)
    assert head["n"] <= live.ROWS
    assert found["count"].sum() == 1001
    assert found["max"].max() == 1e9


def test_the_status_follows_the_run(channel, training):
    """State, step, progress, events and alerts come with the frames, without any new point."""
    cursor = channel.hello()["cursor"]
    training.beat("finished")
    tell(training.folder, "alert", alert="a-1", rule="loss-nan", state="firing", severity="critical", text="NaN")
    ((head, _),) = told(channel, cursor)
    now = head["status"]
    assert (now["state"], now["events"], now["firing"], now["worst"]) == ("finished", 1, 1, "critical")
    assert now["progress"] == pytest.approx((training.number + 1) / 100)
    tell(training.folder, "alert", alert="a-1", rule="loss-nan", state="resolved", severity="critical", sequence=8)
    ((head, _),) = told(channel, head["cursor"])
    assert (head["status"]["firing"], head["status"]["worst"]) == (0, None)


def test_many_clients_cost_one_look(tmp_path, monkeypatch):
    """Pages that ask at the same time share one look at the run."""
    training = Training(tmp_path)
    training.log(3)
    looks = []
    original = FollowedRun._add
    monkeypatch.setattr(FollowedRun, "_add", lambda self, *words: looks.append(1) or original(self, *words))
    server = started(tmp_path)
    try:
        ready(server)
        client = Client(server)
        cursor = client.get("/api/live", query={"run": "mnist/run-1"}).json["cursor"]
        training.log(2)
        monkeypatch.setattr(live, "PACE", 3600.0)  # however late the last of them asks
        server.site.live_runs.get("mnist/run-1")._polled = -1e9
        looks.clear()
        answers = []

        def ask():
            answers.append(client.get("/api/live", query={"run": "mnist/run-1", "since": cursor}).body)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(looks) == 1
        assert len(set(answers)) == 1
        assert client.get("/api/live", query={"run": "mnist/run-1", "since": "x-1"}).status == 409
    finally:
        server.stop()


def test_idle_runs_are_no_longer_followed(training, tmp_path, monkeypatch):
    """A run that nobody asks for is let go, and so are the oldest beyond the limit."""
    monkeypatch.setattr(live, "MAX_LIVE_RUNS", 2)
    channels, connection = FollowedRuns(), connect()
    for name in ("a", "b", "c"):
        channels.open(name, make_run(tmp_path, name).path, connection)
    assert channels.get("a") is None
    monkeypatch.setattr(live, "IDLE", -1.0)
    channels.open("d", make_run(tmp_path, "d").path, connection)
    assert channels.get("c") is None
    assert channels.get("d") is not None
    channels.close()


def test_few_keeps_curves_apart():
    """Buckets never join two ranks or two metrics."""
    points = points_of({"a": np.arange(100.0), "b": np.arange(3.0)})
    found = few(points)
    assert np.bincount(found.name).tolist() == [8, 3]
