from __future__ import annotations

import signal

import pytest

pytest.importorskip("torch", reason="needs torch, whose loaders these are")

from stepscope.integrations.torch.data import WorkerDeaths


class Told:
    def __init__(self):
        self.events = []

    def own_event(self, kind, **facts):
        self.events.append((kind, facts["workers"]))


class Worker:
    def __init__(self, pid, exitcode):
        self.pid, self.exitcode = pid, exitcode


class Iterator:
    def __init__(self, *workers):
        self._workers = workers


@pytest.mark.parametrize(
    ("text", "workers"),
    [
        ("DataLoader worker (pid 12) is killed by signal: Killed. ", {"12": -signal.SIGKILL}),
        ("DataLoader worker (pid 12) is killed by signal: Bus error. It is possible", {"12": -signal.SIGBUS}),
        ("DataLoader worker (pid 12) exited unexpectedly with exit code 3. Details", {"12": 3}),
    ],
)
def test_a_worker_that_dies_before_its_iterator_is_made_is_told_from_the_error(text, workers):
    """torch's own words name the worker and what ended it."""
    run = Told()
    WorkerDeaths(run).look(RuntimeError(text))
    assert run.events == [("worker_died", workers)]


def test_a_worker_is_reported_once_and_only_if_it_died():
    """Living workers, those that ended well and those that torch itself ended are no deaths."""
    run = Told()
    deaths = WorkerDeaths(run)
    deaths.follow(Iterator(Worker(1, None), Worker(2, 0), Worker(3, -signal.SIGTERM), Worker(4, 1)))
    deaths.look()
    deaths.look()
    assert run.events == [("worker_died", {"4": 1})]


def test_another_error_is_no_death():
    """An error of the program's own says nothing of workers."""
    run = Told()
    WorkerDeaths(run).look(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert run.events == []
