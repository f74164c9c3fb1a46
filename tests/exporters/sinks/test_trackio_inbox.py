"""Rules of the files that are left for Trackio; Trackio need not be installed."""

from __future__ import annotations

import errno
import json
import os

import pytest

from stepscope.core.errors import UsageError
from stepscope.exporters.sinks.address import address_of
from stepscope.exporters.sinks.sink import RunNews, SentRow, SinkDeniesError, SinkDownError, SinkRefusesError
from stepscope.exporters.sinks.table import new_sink
from stepscope.exporters.sinks.trackio.inbox import TrackioInbox
from tests.exporters.sinks.batches import RUN, batch_of

ROW = SentRow(0, 0, 0, 0, 1_795_000_001.0, {"loss": 0.5})


def sink_of(url, environ=None):
    """Return the sink of an address."""
    return new_sink(address_of(url), environ or {})


def files(folder):
    """Return the files of a folder and below."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_name_is_never_used_twice(tmp_path):
    """Numbers grow after a restart, a clock that was set back and an import that deleted the files."""
    clock = iter([50, 40, 30, 20, 60])
    inbox = TrackioInbox(tmp_path, "w", lambda: next(clock))
    inbox.write(b"{}\n")
    inbox.write(b"{}\n")
    again = TrackioInbox(tmp_path, "w", lambda: next(clock))
    again.resume()
    again.write(b"{}\n")
    for path in files(tmp_path):
        path.unlink()
    (tmp_path / "inbox" / "w").rmdir()
    again.write(b"{}\n")
    again.write(b"{}\n")
    assert [path.name for path in files(tmp_path)] == ["00000053.jsonl", "00000060.jsonl"]


def test_what_a_killed_process_left_is_deleted(tmp_path):
    """A file that was never completed is gone after the next start, and complete ones stay."""
    folder = tmp_path / "inbox" / "w"
    folder.mkdir(parents=True)
    (folder / ".00000007.tmp").write_bytes(b'{"v":')
    (folder / "00000006.jsonl").write_bytes(b"{}\n")
    TrackioInbox(tmp_path, "w").resume()
    assert [path.name for path in files(tmp_path)] == ["00000006.jsonl"]


def test_a_folder_that_the_importer_removes_meanwhile_is_made_again(tmp_path, monkeypatch):
    """Trackio removes an empty folder of a writer at any time, also just before a file is written."""
    inbox = TrackioInbox(tmp_path, "w")
    real, removed = type(tmp_path).mkdir, []

    def mkdir(path, *args, **kwargs):
        real(path, *args, **kwargs)
        if path.name == "w" and not removed:
            removed.append(path)
            path.rmdir()

    monkeypatch.setattr(type(tmp_path), "mkdir", mkdir)
    inbox.write(b"{}\n")
    assert removed
    assert [path.read_bytes() for path in files(tmp_path)] == [b"{}\n"]


def test_a_full_disk_leaves_no_half_file(tmp_path, monkeypatch):
    """A write that fails for want of space says that the sink is down, and nothing lies there afterwards."""
    sink = sink_of(f"trackio://?dir={tmp_path}")
    sink.open(RUN, {})
    before = files(tmp_path)

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(SinkDownError, match="No space left"):
            sink.send(batch_of([ROW]))
    assert files(tmp_path) == before
    sink.send(batch_of([ROW]))
    assert len(files(tmp_path)) == len(before) + 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux")
def test_a_folder_that_cannot_be_made_denies():
    """A place where no folder can be is reported by name, by the probe and by the first call."""
    sink = sink_of("trackio://?dir=/dev/full/trackio")
    with pytest.raises(SinkDeniesError, match="/dev/full"):
        sink.probe()
    with pytest.raises(SinkDeniesError, match="/dev/full"):
        sink.open(RUN, {})


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_without_the_right_to_write_denies(tmp_path, monkeypatch, number):
    """A read-only folder waits for a person, and is not called an outage."""
    sink = sink_of(f"trackio://?dir={tmp_path}")
    sink.open(RUN, {})

    def refuse(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(SinkDeniesError, match="cannot be written"):
        sink.send(batch_of([ROW]))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_the_probe_sees_a_folder_without_the_right_to_write(tmp_path):
    """The probe names a folder that this user cannot write."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(SinkDeniesError, match="cannot be written by this user"):
        sink_of(f"trackio://?dir={closed}/trackio").probe()


def test_the_probe_creates_nothing(tmp_path):
    """The probe says where Trackio is, and leaves no trace."""
    said = sink_of("trackio://", {"TRACKIO_DIR": str(tmp_path / "new")}).probe()
    assert f"Trackio in {tmp_path / 'new'}" in said
    assert list(tmp_path.iterdir()) == []


def test_a_time_that_is_no_date_is_refused(tmp_path):
    """A row with a time beyond the year 9999 is refused, so that the sender can set it aside."""
    sink = sink_of(f"trackio://?dir={tmp_path}")
    sink.open(RUN, {})
    before = files(tmp_path)
    with pytest.raises(SinkRefusesError, match="no date"):
        sink.send(batch_of([ROW, ROW._replace(seq=1, time=1e12)]))
    assert files(tmp_path) == before


def test_unchanged_news_leave_no_file(tmp_path):
    """A run that goes on without news adds nothing to the inbox, also after a restart but for one file."""
    sink = sink_of(f"trackio://?dir={tmp_path}")
    known = sink.open(RUN, {})
    news = RunNews(config=RUN.config, tags=RUN.tags, notes=RUN.notes)
    for _ in range(3):
        sink.report(news)
    assert len(files(tmp_path)) == 1
    again = sink_of(f"trackio://?dir={tmp_path}")
    again.open(RUN, known)
    for _ in range(3):
        again.report(news)
    assert len(files(tmp_path)) == 2


def test_the_project_of_the_address_wins(tmp_path):
    """Records go to the project of the address if it names one, with its case and spaces."""
    sink = sink_of(f"trackio://My%20Project?dir={tmp_path}")
    assert sink.open(RUN, {})["project"] == "My Project"
    (path,) = files(tmp_path)
    assert json.loads(path.read_bytes())["project"] == "My Project"


@pytest.mark.parametrize(
    ("url", "environ", "cause"),
    [
        ("trackio://a/b", {}, "has no /"),
        ("trackio://?dir=data", {}, "relative path 'data'"),
        ("trackio://", {"TRACKIO_DIR": "data"}, "relative path 'data'"),
        ("trackio://registry-models", {}, "for itself"),
        ("trackio://mnist_system", {}, "for itself"),
        ("trackio://...", {}, "no letter"),
        ("trackio://?folder=/x", {}, "unknown option"),
    ],
)
def test_an_address_that_cannot_work_is_refused_at_once(url, environ, cause):
    """A wrong address is a mistake of use, and says what is wrong."""
    with pytest.raises(UsageError, match=cause):
        sink_of(url, environ)


def test_a_run_whose_project_trackio_cannot_have_is_denied(tmp_path):
    """Without a project in the address, the run's own must be possible in Trackio."""
    from dataclasses import replace

    with pytest.raises(SinkDeniesError, match="trackio://project"):
        sink_of(f"trackio://?dir={tmp_path}").open(replace(RUN, project="registry-x"), {})
