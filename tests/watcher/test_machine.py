from __future__ import annotations

from stepscope.core.vocabulary import GAUGE, Metric
from stepscope.watcher.machine import FRESH_SECONDS, LocalMachine
from tests.fakes import FakeClock


class Source:
    """A sampler that tells what it is told, or fails."""

    def __init__(self, name, values=None, error=None):
        self.name, self.values, self.error = name, values or {}, error
        self.metrics = tuple(Metric(metric, "", GAUGE, "") for metric in self.values)

    def sample(self, now):
        if self.error is not None:
            raise self.error
        return dict(self.values)

    def absent(self):
        return {} if self.values else {self.name: "nothing here; build one"}

    def events(self):
        return []


def test_a_moment_has_the_values_of_all_sources():
    """Every source's values stand under their names, with the time of the look."""
    machine = LocalMachine([Source("a", {"x": 1.0}), Source("b", {"y": 2.0})], clock=FakeClock())
    moment = machine.look()
    assert (moment.wall_ns, moment.values) == (1_000_000_000_000, {"x": 1.0, "y": 2.0})
    assert [metric.name for metric in machine.metrics()] == ["x", "y"]


def test_a_source_that_fails_is_an_event_and_stops_no_other():
    """The others' values are there, and the failure is told once."""
    clock = FakeClock()
    machine = LocalMachine([Source("bad", error=OSError("gone")), Source("good", {"x": 1.0})], clock=clock)
    moment = machine.look()
    assert moment.values == {"x": 1.0}
    assert [(event["kind"], event["sampler"]) for event in moment.events] == [("sampler_failed", "bad")]
    clock.pass_time(5.0)
    assert machine.look().events == []


def test_a_value_that_nobody_renews_goes():
    """A value stays for a while, so that a source asked less often does not flicker, and then it is absent."""
    clock, source = FakeClock(), Source("gpu", {"x": 1.0})
    machine = LocalMachine([source], clock=clock)
    machine.look()
    source.values = {}
    clock.pass_time(2.0)
    assert machine.look().values == {"x": 1.0}
    clock.pass_time(FRESH_SECONDS)
    assert machine.look().values == {}


def test_what_is_absent_is_said_by_its_source():
    """Reasons come from the samplers."""
    assert LocalMachine([Source("a"), Source("b", {"x": 1.0})]).absent() == {"a": "nothing here; build one"}
