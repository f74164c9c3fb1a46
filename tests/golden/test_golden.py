"""Files of every released version are read identically, for ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stepscope.core.places import Places
from stepscope.store.events import read_events
from stepscope.store.layout import FORMAT_VERSION, RunFolder
from stepscope.store.salvage import salvage
from tests.golden import make
from tests.golden.reading import bucket_facts, ring_facts, run_facts

HERE = Path(__file__).parent
VERSIONS = sorted(path for path in HERE.iterdir() if path.is_dir() and path.name.startswith("v"))


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def version(request, tmp_path):
    """A copy of one version's files, and what was read from them when they were made."""
    copy = shutil.copytree(request.param, tmp_path / request.param.name)
    return copy, json.loads((copy / "expected.json").read_text())


def test_current_version_has_files():
    """Every version of the format up to the current one has golden files."""
    assert [path.name for path in VERSIONS] == [f"v{number + 1}" for number in range(FORMAT_VERSION)]


@pytest.mark.parametrize("form", ["tail", "sealed"])
def test_run_reads_as_ever(version, form):
    """A run of any version, in either form, says what it said when it was recorded: bit by bit."""
    home, expected = version
    assert json.loads(json.dumps(run_facts(home / form))) == expected["run"]


def test_pyramid_reads_as_ever(version):
    """The pyramid of any version gives the buckets that it gave."""
    home, expected = version
    found = bucket_facts(home / "sealed")
    assert found.pop("mean") == pytest.approx(expected["buckets"].pop("mean"), rel=1e-12)
    assert found == expected["buckets"]


def test_ring_reads_as_ever(version):
    """A ring of any version can be decoded after its trainer's death."""
    home, expected = version
    assert json.loads(json.dumps(ring_facts(home / "ring"))) == expected["ring"]


def test_reading_changes_nothing(version):
    """Reading a run changes none of its files."""
    home, _ = version
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in home.rglob("*") if path.is_file()}
    run_facts(home / "tail")
    run_facts(home / "sealed")
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in home.rglob("*") if path.is_file()} == before


def test_old_ring_whose_run_is_gone(version, tmp_path):
    """A ring of any version whose run was deleted is cleared away by a salvage."""
    home, _ = version
    places = Places(None, tmp_path)
    place = places.of_run("/nowhere/run", tmp_path)
    place.mkdir()
    for name in ("golden.ring", "golden.schema"):
        shutil.copy(home / "ring" / name, place / name)
    salvage(places)
    assert not (place / "golden.ring").exists()


def test_files_are_small():
    """The golden files of a version take less than 100 kB."""
    for path in VERSIONS:
        assert sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) < 100_000


def test_golden_files_are_not_made_again(capsys):
    """The script refuses to touch the files of a released version."""
    assert make.main() == 1
    assert "never made again" in capsys.readouterr().err


def test_checked_events_read_as_ever(tmp_path):
    """Events with a checksum say what they said when they were written, and whose they are."""
    folder = RunFolder(tmp_path / "run")
    folder.make()
    shutil.copy(HERE / "checked.jsonl", folder.path / "events" / "gold.abc123-0.jsonl")
    place = {"rank": 0, "attempt": 0}
    note, mine, stalled = read_events(folder)[0]
    assert note == {**place, "time": 1767225600.001, "kind": "log", "values": {"note": "µ"}, "step": 0, "sequence": 4}
    told = {**place, "kind": "stalled", "step": 1}
    assert mine == {**told, "time": 1767225601.0, "seconds": "about ten", "written_by": "user", "sequence": 5}
    assert stalled == {**told, "time": 1767225602.0, "seconds": 12.5}
    assert read_events(folder)[1] == []
