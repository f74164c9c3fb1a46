import json
import os
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import StepscopeError
from stepscope.store import labels
from stepscope.store.labels import MOST_TAGS, Labels, add_labels, change_labels, make_labels, read_labels
from stepscope.store.layout import RunFolder


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "run")
    made.make()
    return made


def test_labels_are_read_back(folder):
    """What was written is read back, readable by this user only."""
    wanted = Labels(("baseline", "große Läufe"), "first line\nsecond", "sweep 7", "better name")
    change_labels(folder, lambda _before: wanted)
    assert read_labels(folder) == wanted
    assert folder.labels_file.stat().st_mode & 0o777 == 0o600


def test_a_run_without_labels_has_empty_ones(folder):
    """A run that nobody labelled has no labels, and no file for them."""
    assert read_labels(folder) == Labels()
    assert not folder.labels_file.exists()


def test_adding_keeps_what_is_there(folder):
    """Added tags come after the others and once; an empty text changes nothing."""
    change_labels(folder, add_labels(Labels(("a", "b"), "why", "sweep")))
    found = change_labels(folder, add_labels(Labels(("b", "c"), "", "other")))
    assert found == read_labels(folder) == Labels(("a", "b", "c"), "why", "other")


def test_writers_at_once_lose_nothing(folder):
    """Each of several writers at the same time finds its tag kept."""
    writers = [threading.Thread(target=change_labels, args=(folder, add_labels(Labels((str(n),))))) for n in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(read_labels(folder).tags) == [str(n) for n in range(8)]


def test_another_writer_that_stays_busy_is_an_error(folder, monkeypatch):
    """A writer that cannot get its turn says so."""

    def busy(*_):
        raise BlockingIOError

    monkeypatch.setattr(labels, "locked", busy)
    with pytest.raises(StepscopeError, match="another process is changing its labels; try again"):
        change_labels(folder, lambda before: before, patience=0)


def test_a_disk_that_refuses_is_an_error(folder, monkeypatch):
    """A write that fails is reported, and the old labels stay."""
    change_labels(folder, lambda _before: Labels(("kept",)))

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(StepscopeError, match="No space left on device"):
        change_labels(folder, lambda before: replace(before, notes="lost"))
    assert read_labels(folder) == Labels(("kept",))


@given(
    st.binary(max_size=60)
    | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps).map(str.encode)
)
def test_a_damaged_file_never_stops_a_reader(tmp_path_factory, data):
    """Whatever the file holds, reading it gives labels of the right types."""
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.labels_file.write_bytes(data)
    found = read_labels(folder)
    assert all(isinstance(tag, str) for tag in found.tags)


def test_a_malformed_entry_costs_itself(folder):
    """An entry of the wrong type is left out; the others count."""
    folder.labels_file.write_text(json.dumps({"tags": ["a", 1, None], "notes": 3, "group": "g"}))
    assert read_labels(folder) == Labels(("a",), "", "g")


def test_labels_are_made_from_what_people_pass():
    """One tag or several, None, control characters and long lists become clean labels."""
    assert make_labels("one").tags == ("one",)
    assert make_labels(["a", "", "a", "b\x1b[31m", 3]).tags == ("a", "b [31m", "3")
    assert make_labels(None, None, None) == Labels()
    assert len(make_labels([str(n) for n in range(500)]).tags) == MOST_TAGS


def test_secrets_in_notes_are_redacted():
    """A token in the notes is not kept."""
    assert (
        "hf_abcdefghijklmnopqrstuvwxyz0123456789"
        not in make_labels(notes="token hf_abcdefghijklmnopqrstuvwxyz0123456789").notes
    )
