"""Following the tails of a run that is being written."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.store.drain import Drain, OwnRows
from stepscope.store.following import TailFollower
from stepscope.store.reader import Past
from tests.exporters.recorded import PAIR, WRITER, make_run, points_of, seal_points


class Watcher:
    """Writes rows to the tail of a run, as a watcher does."""

    def __init__(self, folder):
        self.folder, self.own = folder, OwnRows(-1, 0)
        self.drain = Drain(folder, WRITER, self.own)
        self.number = 0

    def write(self, count, name="value"):
        """Append so many rows, numbered on."""
        for _ in range(count):
            self.own.add({name: float(self.number)}, self.number * 1_000_000)
            self.number += 1
        self.drain.write_own(PAIR)


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path)


def values(points):
    return points.value[np.argsort(points.seq)].tolist()


def test_each_look_gives_what_has_come_since(folder):
    """What was there before is not given; what comes later is given once, with the name it was written under."""
    watcher = Watcher(folder)
    watcher.write(5)
    follower = TailFollower(folder)
    assert not len(follower.look())
    watcher.write(3)
    watcher.write(2)
    found = follower.look()
    assert values(found) == [5.0, 6.0, 7.0, 8.0, 9.0]
    assert [found.names[code] for code in set(found.name.tolist())] == ["value"]
    assert not len(follower.look())
    watcher.write(1, "other")
    assert values(follower.look()) == [10.0]
    follower.close()


def test_a_tail_that_was_rotated_is_read_to_its_end(folder):
    """A new tail is followed as well, and the old one is read to its end even after it was removed."""
    watcher = Watcher(folder)
    watcher.write(2)
    follower = TailFollower(folder)
    watcher.write(2)
    watcher.drain.rotate()
    old = folder.all_tails()[0].path
    watcher.write(2)
    old.unlink()
    assert values(follower.look()) == [2.0, 3.0, 4.0, 5.0]
    assert not follower.missed
    follower.close()


def test_what_was_never_seen_is_told(folder):
    """A tail that came and was sealed between two looks is missed, and said to be."""
    watcher = Watcher(folder)
    watcher.write(1)
    follower = TailFollower(folder)
    seal_points(folder, points_of({"loss": [1.0, 2.0]}, first=100), number=7)
    follower.look()
    assert follower.missed
    follower.close()


def test_half_a_frame_waits_for_the_rest(folder):
    """A write under way is read when it is whole."""
    watcher = Watcher(folder)
    watcher.write(1)
    follower = TailFollower(folder)
    watcher.write(1)
    path = folder.all_tails()[0].path
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(len(whole) - 8)
    assert not len(follower.look())
    path.write_bytes(whole)
    assert values(follower.look()) == [1.0]
    follower.close()


def test_followed_points_are_those_that_are_read(folder):
    """What was followed is what the run has, sealed or not."""
    follower = TailFollower(folder)
    watcher = Watcher(folder)
    seen = []
    for count in (1, 50, 400, 3):
        watcher.write(count)
        seen += values(follower.look())
    assert seen == Past(folder).series("value").value.tolist()
    follower.close()
