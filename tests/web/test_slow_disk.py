"""A disk that does not answer holds up what lies on it, and nothing else. Here an event takes its place."""

from __future__ import annotations

import asyncio
import threading

import pytest

from stepscope.web import handlers, reader_pool
from stepscope.web import run_list as run_lists
from stepscope.web.disk_tasks import DiskTasks
from stepscope.web.reader_pool import DiskStalledError, ReaderPool
from stepscope.web.run_list import ListedRuns
from tests.web.served import OTHER, RUN, Client, make_run, ready, started, until

SLOW = "20261116-100000-slow"


@pytest.fixture
def disk():
    """A disk that hangs until the event is set; set at the end, so that no thread is left."""
    found = threading.Event()
    yield found
    found.set()


def hanging(disk, real, is_slow):
    """Return a function that waits for the disk where it meets the slow path."""

    def call(path, *rest):
        if is_slow(path):
            assert disk.wait(120)
        return real(path, *rest)

    return call


def listed(found):
    """Return the state of each run of a catalogue."""
    return {row["id"]: row["state"] for row in found.rows()["rows"]}


def test_a_stalled_task_is_abandoned(disk):
    """The works around one that hangs are done; it ends when it can, and only then may it be done again."""
    done, tasks = [], DiskTasks(patience=0.05, max_stalled=4)
    works = [("a", lambda: done.append("a")), ("b", lambda: disk.wait(120)), ("c", lambda: done.append("c"))]
    late = tasks.run(works)
    until(lambda: {"a", "c"} <= set(done), "the works beside it")
    assert "b" in late
    assert "b" in tasks.stalled
    assert tasks.run(works[1:2]) == {"b"}
    disk.set()
    until(lambda: not tasks.stalled, "the work that was held up")
    until(lambda: tasks.run([("b", lambda: done.append("b"))]) == set(), "it to be done again")


def test_no_task_starts_while_too_many_are_stalled(disk):
    """Threads that hang are bounded in number; what is not begun is told."""
    tasks = DiskTasks(patience=0.01, max_stalled=2)
    works = [(f"{place}", lambda: disk.wait(120)) for place in range(5)]
    assert tasks.run(works) == {key for key, _ in works}
    assert len(tasks.stalled) == 2


def test_an_error_of_a_task_is_raised():
    """The error of a work reaches whoever asked for it."""

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        DiskTasks(patience=60).run([("a", fail)])


@pytest.mark.slow
def test_a_run_on_a_slow_disk_is_listed_and_stalls_no_other(tmp_path, monkeypatch, disk):
    """The list is complete without it: it is shown as one that is being read, and has its row when the disk answers."""
    for name in (SLOW, "20261116-110000-fast", "20261116-090000-fast"):
        make_run(tmp_path, name)
    slow = hanging(disk, run_lists.is_run, lambda path: path.name == SLOW)
    monkeypatch.setattr(run_lists, "is_run", slow)
    found = ListedRuns(tmp_path)

    def states():
        found.scan()
        return listed(found)

    until(lambda: states() == {SLOW: "reading", **dict.fromkeys(others(tmp_path), "finished")}, "the other runs")
    assert found.complete
    disk.set()
    until(lambda: states()[SLOW] == "finished", "the row of the slow run")


def others(root):
    """Return the runs that lie on a good disk."""
    return [path.name for path in root.glob("*/*") if path.name != SLOW]


@pytest.mark.slow
def test_a_project_that_hangs_keeps_its_known_runs(tmp_path, monkeypatch, disk):
    """When the mount of a whole project stops answering, its runs stay listed, and new ones elsewhere are found."""
    make_run(tmp_path, "known", project="mount")
    make_run(tmp_path, "first", project="here")
    found = ListedRuns(tmp_path)
    until(lambda: found.scan() or len(listed(found)) == 2, "both runs")
    monkeypatch.setattr(run_lists, "_folders", hanging(disk, run_lists._folders, lambda path: path.name == "mount"))
    make_run(tmp_path, "second", project="here")
    assert until(lambda: found.scan() or set(listed(found)) == {"known", "first", "second"}, "the new run")


def test_a_card_that_hangs_lets_the_others_be_read(tmp_path, monkeypatch, disk):
    """The card of a slow run is left behind, and those of the others come."""
    monkeypatch.setattr(run_lists, "SLOW_CARD", 0.05)
    monkeypatch.setattr(run_lists, "EVERY", 0.05)
    for name in (SLOW, "20261116-090000-fast"):
        make_run(tmp_path, name)
    card = hanging(disk, lambda _path: {"problems": 0}, lambda path: path.name == SLOW)
    found = ListedRuns(tmp_path, card)
    found.start()
    try:

        def cards():
            return {row["id"]: row["card"] is not None for row in found.rows()["rows"]}

        assert until(lambda: cards() == {SLOW: False, "20261116-090000-fast": True}, "the card of the other run")
        disk.set()
        until(lambda: all(cards().values()), "the card of the slow run")
    finally:
        found.stop()


def test_questions_about_one_run_never_take_all_threads(disk):
    """While one run hangs, another is answered; the one that hangs is refused once its questions were given up."""
    readers, begun = ReaderPool(threads=2), threading.Event()

    def hang(_connection):
        begun.set()
        return disk.wait(120)

    async def ask():
        loop = asyncio.get_running_loop()
        waiting = [asyncio.ensure_future(readers.read(place, hang, "slow")) for place in range(4)]
        assert await loop.run_in_executor(None, begun.wait, 60)
        assert await readers.read("other", lambda _: "answer", "fast") == "answer"
        for one in waiting:
            one.cancel()
        while not readers.stalled["slow"]:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        with pytest.raises(DiskStalledError):
            await readers.read("again", lambda _: "answer", "slow")
        assert await readers.read("more", lambda _: "answer", "fast") == "answer"
        disk.set()
        while readers.stalled["slow"]:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        return await readers.read("at last", lambda _: "answer", "slow")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_pool, "STALL_SECONDS", 0.05)
        assert asyncio.run(asyncio.wait_for(ask(), 120)) == "answer"
    readers.close()


def test_a_run_whose_disk_hangs_is_told_so(root, monkeypatch, disk):
    """After its deadline the page hears why, at once, and other runs are answered."""
    monkeypatch.setattr(handlers, "DEADLINE", 0.2)
    monkeypatch.setattr(reader_pool, "STALL_SECONDS", 0.05)
    server = started(root)
    try:
        ready(server)
        real = server.site.open
        monkeypatch.setattr(server.site, "open", hanging(disk, real, lambda key: key == RUN))
        client = Client(server)

        def text():
            return client.get("/api/names", query={"run": RUN}).json.get("error", {}).get("text", "")

        until(lambda: "its disk does not respond" in text(), "the reason")
        monkeypatch.setattr(handlers, "DEADLINE", 60.0)
        assert client.get("/api/names", query={"run": OTHER}).status == 200
        disk.set()
        until(lambda: client.get("/api/names", query={"run": RUN}).status == 200, "the run again")
    finally:
        disk.set()
        server.stop()
