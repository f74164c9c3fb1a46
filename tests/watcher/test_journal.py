from __future__ import annotations

import os

from stepscope.watcher.journal import Journal


def test_once_per_kind(tmp_path):
    """A line is written once per kind, private to the user, and every time is counted."""
    journal = Journal(tmp_path / "watcher.log")
    for message in ("cannot a", "cannot a", "cannot b"):
        journal.note(message)
    journal.note("cannot write 1", "write")
    journal.note("cannot write 2", "write")
    lines = (tmp_path / "watcher.log").read_text().splitlines()
    assert [line.partition("] ")[2] for line in lines] == ["cannot a", "cannot b", "cannot write 1"]
    assert journal.counts["write"] == 2
    assert (tmp_path / "watcher.log").stat().st_mode & 0o777 == 0o600


def test_nowhere_to_write(tmp_path, monkeypatch):
    """Where no line can be written the count is what is left; nothing is raised."""
    Journal(tmp_path / "none" / "watcher.log").note("lost")
    journal = Journal(tmp_path / "watcher.log")

    def refuse(*_):
        raise OSError("full")

    monkeypatch.setattr(os, "write", refuse)
    journal.note("lost")
    assert journal.counts["unwritten"] == 1


def test_text_that_cannot_be_encoded(tmp_path):
    """A message with a lone surrogate, as of an odd file name, is written all the same."""
    Journal(tmp_path / "watcher.log").note("cannot open \udcff")
    assert "cannot open ?" in (tmp_path / "watcher.log").read_text()
