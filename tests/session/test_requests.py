from __future__ import annotations

import contextlib
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.places import REQUEST_SUFFIX
from stepscope.session.opening import init
from stepscope.session.requests import MAX_BYTES, ProfileRequest, place, take


@pytest.fixture
def path(tmp_path):
    return tmp_path / "0.0.abc.request"


def test_request_is_taken_once(path):
    """A request is found once, as it was asked, and its file is gone; it is readable by this user only."""
    assert take(str(path)) is None
    place(path, ProfileRequest("r1", {"steps": 5}))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert take(str(path)) == ProfileRequest("r1", {"steps": 5})
    assert take(str(path)) is None
    assert list(path.parent.iterdir()) == []


def test_later_request_replaces_one_that_nobody_took(path):
    """Of two requests that nobody took the later one counts."""
    place(path, ProfileRequest("r1", {}))
    place(path, ProfileRequest("r2", {}))
    assert take(str(path)).id == "r2"


def test_no_request_costs_one_look(path, monkeypatch):
    """Without a request there is one look at the file system, and no file is opened."""
    looks = []
    monkeypatch.setattr(os, "stat", lambda name: looks.append(name) or (_ for _ in ()).throw(FileNotFoundError()))
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opened"))
    assert take(str(path)) is None
    assert looks == [str(path)]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"profile": 3, "id": "x"}', b"\xff", b"[" * MAX_BYTES])
def test_nonsense_is_thrown_away(path, content):
    """What is no request is removed, and nothing comes of it."""
    path.write_bytes(content)
    assert take(str(path)) is None
    assert not path.exists()


@given(st.binary(max_size=200))
def test_any_content_is_a_request_or_a_value_error(content):
    """Whatever the file holds, it is a request or refused by a ValueError."""
    with contextlib.suppress(ValueError):
        assert isinstance(ProfileRequest.decode(content), ProfileRequest)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_no_file_is_no_request(path, tmp_path, kind):
    """A link, a pipe or a folder in its place is no request, and nobody waits for it."""
    if kind == "link":
        (tmp_path / "other").write_text("{}")
        path.symlink_to(tmp_path / "other")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert take(str(path)) is None


def test_run_answers_a_request(started, monkeypatch):
    """A run looks for requests about once a second, from whatever it records, and says that one was taken."""
    run = init(project="asked")
    asked, events = [], []
    monkeypatch.setattr(type(run), "profile", lambda self, **options: asked.append(options))
    monkeypatch.setattr(type(run), "own_event", lambda self, kind, **fields: events.append((kind, fields)))
    place(run._mapping.path.with_suffix(REQUEST_SUFFIX), ProfileRequest("r1", {"steps": 5}))
    run._due = 0
    run.log(loss=1.0)
    run.log(loss=1.0)
    assert asked == [{"steps": 5, "labels": {"request": "r1"}, "show": None}]
    assert events == [("profile_requested", {"request": "r1"})]


def test_followers_hear_of_steps_until_they_leave(started):
    """A follower is told of every step from the next one on, in order with others, until it leaves or the run ends."""
    run = init(project="followed")
    heard = []

    class Follower:
        def __init__(self, name):
            self.name = name

        def step_ended(self):
            heard.append((self.name, run.step_index))

        def run_ended(self):
            heard.append((self.name, "end"))

    first, second = Follower("a"), Follower("b")
    with run.step():
        run.follow(first)
    with run.step():
        pass
    run.follow(second)
    with run.step(samples=3):
        pass
    run.unfollow(first)
    run.unfollow(first)
    with run.step():
        pass
    run.finish()
    assert heard == [("a", 1), ("a", 2), ("b", 2), ("b", 3), ("b", "end")]


def test_child_of_a_fork_has_no_followers(started):
    """A run that was disarmed after a fork tells nobody."""
    run = init(project="forked")
    run.follow(None)
    run.disarm()
    with run.step():
        pass
    assert run.followers == ()
