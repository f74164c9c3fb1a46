"""New rings are found by a look at the times of their folders, and never missed for it."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.core.places import Places
from stepscope.watcher.loop import ANYWAY, SETTLE, RingFolders


def folders(tmp_path):
    places = Places(None, tmp_path)
    home = places.of_run("/runs/a", tmp_path)
    home.mkdir()
    return RingFolders(places, Path("/runs/a")), home


def test_a_folder_at_rest_is_not_listed(tmp_path):
    """Some time after its last change a folder is listed now and then only."""
    rings, _ = folders(tmp_path)
    assert rings.may_have_new(100.0)
    assert rings.may_have_new(100.0 + SETTLE)  # a file may have come in the same tick of the clock as the list
    assert not rings.may_have_new(101.0 + SETTLE)
    assert rings.may_have_new(100.5 + SETTLE + ANYWAY)


def test_a_change_is_seen(tmp_path):
    """A file that comes changes the time of its folder."""
    rings, home = folders(tmp_path)
    rings.may_have_new(100.0)
    rings.may_have_new(102.0)
    assert not rings.may_have_new(103.0)
    (home / "0.ring").touch()
    os.utime(home, ns=(1, 1))  # whatever the clock of this machine resolves
    assert rings.may_have_new(103.5)


def test_a_folder_that_is_not_there_is_no_fault(tmp_path):
    """It may come."""
    rings = RingFolders(Places(None, tmp_path / "none"), Path("/runs/a"))
    assert rings.may_have_new(100.0)
