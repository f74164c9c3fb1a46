from __future__ import annotations

import json
import struct
import threading
import urllib.request

import pytest

from stepscope.core.columns import RowSchema, SchemaTable
from stepscope.core.feed import Subject
from stepscope.core.records import RECORD
from stepscope.core.vocabulary import GAUGE, Metric
from stepscope.exporters.prometheus.feed import PageFeed, open_feed
from stepscope.watcher.process import Sleeper

ON = {"exporters.prometheus.enabled": True, "exporters.prometheus.port": 0}


@pytest.fixture
def subject(tmp_path):
    return Subject("run-1", "mnist", "gold", tmp_path)


@pytest.fixture
def notes():
    return []


@pytest.fixture
def feed(subject, notes):
    made = open_feed(ON, subject, [Metric("disk/*/busy_ratio", "ratio", GAUGE, "Busy.")], notes.append)
    yield made
    made.close()


def page(feed):
    return feed.board.page()[1].decode()


def step(seconds):
    body = struct.pack("<qd", round(seconds * 1e9), 0.5)
    return RECORD.pack(RECORD.size + len(body), 16, 0, 0, 0) + body


@pytest.fixture
def table():
    made = SchemaTable()
    made.schemas[16] = RowSchema(16, ("step_seconds", "loss"), "qd")
    return made


def test_off_by_default(subject, notes):
    """Unless it is enabled nothing listens and nothing is written."""
    assert open_feed({}, subject, [], notes.append) is None
    assert (notes, list(subject.folder.iterdir())) == ([], [])


def test_rows_and_samples_reach_the_page(feed, table):
    """Drained rows and samples of the machine are on the page, with the labels of their run, until their rank ends."""
    feed.rows(3, [step(1.0), step(2.0)], table)
    feed.sample(-1, {"disk/sda/busy_ratio": 0.25})
    text = page(feed)
    assert 'training_loss{run="run-1",rank="3",project="mnist"} 0.5' in text
    assert 'training_steps_total{run="run-1",rank="3",project="mnist"} 2.0' in text
    assert 'device="sda"} 0.25' in text
    feed.end(3)
    assert 'rank="3"' not in page(feed)


def test_sleeping_serves(feed, table):
    """A client that asks while the watcher sleeps gets an answer."""
    feed.rows(0, [step(1.0)], table)
    answers, sleeper = [], Sleeper()

    def scrape():
        with urllib.request.urlopen(f"http://{feed.endpoint.target}/metrics", timeout=120) as answer:
            answers.append(answer.read())

    thread = threading.Thread(target=scrape)
    thread.start()
    for _ in range(2400):
        sleeper.sleep(0.05, [], feed)
        if answers:
            break
    thread.join()
    assert b"training_loss" in answers[0]


def test_chosen_port_is_written_down(feed, subject, notes):
    """The port is in a file_sd file of the run and in the watcher's log; the file goes at the end."""
    path = subject.folder / "prometheus-gold.json"
    [target] = json.loads(path.read_text())[0]["targets"]
    assert target == f"127.0.0.1:{feed.endpoint.port}"
    assert notes == [f"metrics for Prometheus are on http://{target}/metrics"]
    feed.close()
    assert not path.exists()


def test_targets_go_where_they_are_wanted(subject, notes, tmp_path):
    """A folder for all runs gets a file of the run's own name, which other users can read."""
    feed = open_feed({**ON, "exporters.prometheus.targets": str(tmp_path / "all")}, subject, [], notes.append)
    [path] = (tmp_path / "all").iterdir()
    assert path.name == "mnist-run-1-gold.json"
    assert path.stat().st_mode & 0o777 == 0o644
    feed.close()
    assert list((tmp_path / "all").iterdir()) == []


def test_what_cannot_be_had_is_noted(subject, notes, tmp_path):
    """An impossible address or folder is noted, and the watcher goes on."""
    settings = {**ON, "exporters.prometheus.host": "192.0.2.1"}
    assert open_feed(settings, subject, [], notes.append) is None
    (tmp_path / "file").write_text("")
    feed = open_feed({**ON, "exporters.prometheus.targets": str(tmp_path / "file")}, subject, [], notes.append)
    assert isinstance(feed, PageFeed)
    feed.close()
    assert "cannot serve metrics on 192.0.2.1:0" in notes[0]
    assert "cannot write" in notes[2]


def test_other_addresses_get_a_token(subject, notes):
    """Listening on all addresses makes a token in the run, private, without which nothing is answered."""
    feed = open_feed({**ON, "exporters.prometheus.host": "0.0.0.0"}, subject, [], notes.append)
    assert isinstance(feed, PageFeed)
    token = subject.folder / "prometheus-gold.token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert feed.endpoint._rules.refuses("", 0.0).status == 401
    assert feed.endpoint._rules.refuses(f"Bearer {token.read_text().strip()}", 0.0) is None
    feed.close()
