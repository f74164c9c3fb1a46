from __future__ import annotations

import pytest

from stepscope.watcher.journal import Journal
from stepscope.watcher.sampling import Sampling, SamplingPlan, by_instance


class FakeSampler:
    """A source whose value, cost and failure the test sets."""

    metrics = ()

    def __init__(self, name="cpu"):
        self.name, self.asked, self.error, self.cost = name, [], None, (0.0, 0.0)
        self.spent = [0.0, 0.0]
        self.told = []

    def sample(self, now):
        self.asked.append(now / 1e9)
        self.spent = [spent + cost for spent, cost in zip(self.spent, self.cost, strict=True)]
        if self.error:
            raise self.error
        return {f"{self.name}/value": 1.0}

    def absent(self):
        return {self.name: "not here; get one"}

    def events(self):
        told, self.told = self.told, []
        return told


@pytest.fixture
def sampler():
    return FakeSampler()


def sampling_of(tmp_path, *samplers, **plan):
    return Sampling(samplers, SamplingPlan(**plan), Journal(tmp_path / "watcher.log"), lambda: tuple(samplers[0].spent))


def go(sampling, seconds, phase="", start=0.0):
    """Let the sampling have a look every 0.1 s; return all events."""
    found = []
    for tick in range(round(seconds * 10)):
        found += sampling.round(round((start + tick / 10) * 1e9), phase).events
    return found


@pytest.mark.promise("S2-049")
def test_each_at_its_interval(tmp_path, sampler):
    """A sampler is asked once per interval: 1 s unless another is set for it, down to 0.1 s."""
    quick = FakeSampler("nvidia")
    go(sampling_of(tmp_path, sampler, quick, intervals={"nvidia": 0.1}), 3.0)
    assert (len(sampler.asked), len(quick.asked)) == (3, 30)


@pytest.mark.promise("S0-082")
def test_interval_of_a_phase(tmp_path, sampler):
    """In a phase that has an interval of its own every sampler keeps to that."""
    sampling = sampling_of(tmp_path, sampler, phases={"evaluation": 5.0})
    go(sampling, 10.0, "evaluation")
    assert len(sampler.asked) == 2
    go(sampling, 3.0, "", start=10.0)
    assert len(sampler.asked) == 5


def test_a_failing_source(tmp_path, sampler):
    """A source that fails is said so once, asked ever more rarely, and its return is told; the others go on."""
    other = FakeSampler("memory")
    sampling = sampling_of(tmp_path, sampler, other)
    sampler.error = RuntimeError("no such counter")
    kinds = [event["kind"] for event in go(sampling, 120.0)]
    assert kinds == ["sampler_failed"]
    assert len(sampler.asked) < 10
    assert len(other.asked) == 120
    sampler.error = None
    assert [event["kind"] for event in go(sampling, 120.0, start=120.0)] == ["sampler_back"]
    assert len(sampler.asked) > 60


@pytest.mark.parametrize("cost", [(0.02, 0.02), (0.0, 0.5)], ids=["busy", "blocked"])
def test_a_costly_source(tmp_path, sampler, cost):
    """A source over its budget is asked more rarely and says so, and comes back when it is cheap again."""
    sampling = sampling_of(tmp_path, sampler)
    sampler.cost = cost
    told = go(sampling, 60.0)
    assert {event["kind"] for event in told} == {"sampler_slowed"}
    assert told[0]["interval_seconds"] == 2.0
    assert len(sampler.asked) < 30
    sampler.cost, before = (0.0, 0.0), len(sampler.asked)
    go(sampling, 300.0, start=60.0)
    assert len(sampler.asked) - before > 150


def test_one_slow_sample(tmp_path, sampler):
    """A single sample over budget changes nothing: the machine may have been busy."""
    sampling = sampling_of(tmp_path, sampler)
    sampler.cost = (0.02, 0.02)
    go(sampling, 1.0)
    sampler.cost = (0.0, 0.0)
    assert go(sampling, 5.0, start=1.0) == []
    assert len(sampler.asked) == 6


def test_events_and_absences(tmp_path, sampler):
    """What a source reports and what it lacks is handed on."""
    sampling = sampling_of(tmp_path, sampler)
    sampler.told = [{"kind": "gpu_lost"}]
    assert go(sampling, 0.1) == [{"kind": "gpu_lost"}]
    assert sampling.absent() == {"cpu": "not here; get one"}


def test_plan_of_settings():
    """The configuration names intervals by sampler and by phase; 0 is one that nobody set."""
    settings = {"samplers.interval": 2.0, "samplers.intervals.disk": 5.0, "samplers.intervals.cpu": 0.0}
    plan = SamplingPlan.of({**settings, "samplers.phases.evaluation": 10.0, "samplers.budget": 0.1})
    assert plan == SamplingPlan(2.0, {"disk": 5.0}, {"evaluation": 10.0}, 0.1)
    assert SamplingPlan.of({}) == SamplingPlan()


def test_a_row_per_instance():
    """GPUs and ranks have rows of their own: what one tells rarely does not change the names of the others."""
    values = {"cpu/0/usage_ratio": 1.0, "gpu/0/a": 2.0, "gpu/1/a": 3.0, "gpu/sum": 4.0, "process/7/worker/1/b": 5.0}
    assert by_instance(values) == [
        {"cpu/0/usage_ratio": 1.0, "gpu/sum": 4.0},
        {"gpu/0/a": 2.0},
        {"gpu/1/a": 3.0},
        {"process/7/worker/1/b": 5.0},
    ]
