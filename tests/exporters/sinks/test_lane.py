"""The way of rows to one sink: what is confirmed, tried again, set aside, and reported."""

from __future__ import annotations

import dataclasses
import json
import shutil
from functools import partial

import pytest

from stepscope.core.errors import UsageError
from stepscope.exporters.sinks.address import SinkAddress
from stepscope.exporters.sinks.lane import DENIED_WAIT, LATE, LONGEST_WAIT, SentRun, SinkLane
from stepscope.exporters.sinks.sink import (
    CALL_SECONDS,
    Receipt,
    RunNews,
    Sink,
    SinkDeniesError,
    SinkDownError,
    SinkRefusesError,
    SinkSlowError,
)
from stepscope.store.sinks import DENIED, DONE, SENDING, WAITING, load_sink, state_path
from tests.exporters.recorded import CREATED, WRITER, leave_tail, make_run
from tests.exporters.sinks.batches import RUN

ADDRESS = SinkAddress("fake", "fake", "fake://here", interval=2.0)
START = CREATED / 1e6 + 1.0


class FakeSink(Sink):
    """Keeps what it is given, in the order of a script of faults."""

    kind = "fake"
    most_points = 4

    def __init__(self, world):
        super().__init__(ADDRESS, {})
        self.world = world

    def open(self, run, known):
        self.world.calls.append(("open", dict(known)))
        self.world.fault("open")
        return {"run": "7"}

    def send(self, batch):
        rows = list(batch.rows())
        self.world.calls.append(("send", [row.seq for row in rows]))
        self.world.fault("send")
        if any(row.values.get("loss") in self.world.poison for row in rows):
            raise SinkRefusesError("the server answered 400: bad value")
        self.world.rows += [(row.rank, row.seq, name) for row in rows for name in row.values]
        return self.world.receipt

    def report(self, news):
        self.world.calls.append(("report", news.state))
        self.world.fault("report")
        self.world.reported.append(news)

    def close(self):
        self.world.calls.append(("close", None))
        self.world.fault("close")


class World:
    """A run, a sink, and a clock that only tests move."""

    def __init__(self, folder):
        self.folder, self.now, self.is_over, self.state = folder, START, False, "running"
        self.calls, self.rows, self.reported, self.faults = [], [], [], []
        self.poison, self.receipt = (), Receipt()
        self.kind = FakeSink
        self.address = ADDRESS

    def fault(self, call):
        if self.faults and self.faults[0][0] in {call, "any"}:
            raise self.faults.pop(0)[1]

    def lane(self):
        view = SentRun(self.folder, WRITER.node, lambda _: True, lambda: RUN, self.news, lambda: self.is_over)
        return SinkLane(self.address, partial(self.kind, self), view, lambda: self.now, lambda: 1.0)

    def news(self, reported, latest):
        return RunNews(self.state, latest=dict(latest)), {"digest": self.state, "latest": len(latest)}

    def turns(self, lane, count=1, wait=0.0):
        for _ in range(count):
            self.now += wait
            lane.turn()


@pytest.fixture
def world(tmp_path):
    folder = make_run(tmp_path)
    leave_tail(folder, [{"loss": float(number)} for number in range(10)])
    return World(folder)


def sent(world):
    return [seq for _, seq, _ in world.rows]


def test_rows_are_sent_in_portions_and_confirmed_one_by_one(world):
    """Each portion is confirmed on disk before the next is sent; then the lane rests for its interval."""
    lane = world.lane()
    world.turns(lane)
    assert load_sink(world.folder, ADDRESS.key, WRITER.node).sent == {"0.0": [[0, 3]]}
    world.turns(lane, 5)
    state = load_sink(world.folder, ADDRESS.key, WRITER.node)
    assert sent(world) == list(range(10))
    assert (state.sent, state.sent_rows, state.state, state.known) == ({"0.0": [[0, 9]]}, 10, SENDING, {"run": "7"})
    assert lane.due == world.now + 2.0


def test_a_new_lane_goes_on_where_the_last_one_was_confirmed(world):
    """After a crash nothing that was confirmed is sent again, and the sink gets the facts that it gave."""
    world.turns(world.lane())
    world.calls.clear()
    world.turns(world.lane(), 5)
    assert sent(world) == list(range(10))
    assert world.calls[0] == ("open", {"run": "7"})


def test_a_damaged_state_sends_everything_again(world):
    """A state that cannot be read costs repetition, never rows."""
    world.turns(world.lane(), 5)
    state_path(world.folder, ADDRESS.key, WRITER.node).write_bytes(b"{")
    world.turns(world.lane(), 5)
    assert sent(world) == [*range(10), *range(10)]


def test_a_sink_that_is_down_is_tried_again_with_growing_pauses(world):
    """The same rows are sent when it is back, and the state says why it waits and how far it is behind."""
    lane = world.lane()
    world.faults = [("send", SinkDownError("the server answered 503"))] * 12
    pauses = []
    for _ in range(12):
        world.turns(lane)
        pauses.append(lane.due - world.now)
        world.now = lane.due
    assert pauses[:4] == pytest.approx([0.5, 1.0, 2.0, 4.0])
    assert pauses[-1] == LONGEST_WAIT
    state = load_sink(world.folder, ADDRESS.key, WRITER.node)
    assert (state.state, state.why, state.behind_rows) == (WAITING, "the server answered 503", 10)
    assert state.behind_seconds > 60
    world.turns(lane, 6)
    assert sent(world) == list(range(10))
    assert lane.state.why == ""


def test_a_sink_that_takes_a_row_per_second_gets_all(tmp_path):
    """Batches shrink until the sink takes them in time; when it is quick again, they grow."""

    class SlowSink(FakeSink):
        most_points = 1000
        rate = 1.0

        def send(self, batch):
            took = len(batch) / self.world.rate
            self.world.now += min(took, CALL_SECONDS)
            self.world.sizes.append(len(batch))
            if took > CALL_SECONDS:
                raise SinkSlowError("no answer in time")
            return super().send(batch)

    folder = make_run(tmp_path)
    leave_tail(folder, [{"loss": float(number)} for number in range(1000)])
    world = World(folder)
    world.kind, world.rate, world.sizes = SlowSink, 1.0, []
    lane = world.lane()
    while len(world.rows) < 300:
        world.now = max(world.now, lane.due)
        lane.turn()
    assert sent(world) == list(range(len(world.rows)))
    assert max(world.sizes[20:]) < 2 * CALL_SECONDS
    assert world.sizes.count(1000) == 1
    world.rate = 1000.0
    for _ in range(40):
        lane.turn()
    assert sent(world) == list(range(1000))
    assert load_sink(folder, ADDRESS.key, WRITER.node).sent == {"0.0": [[0, 999]]}
    leave_tail(folder, [{"loss": float(number)} for number in range(1000)], first=1000)
    world.turns(lane, 9, wait=2.0)
    assert sent(world) == list(range(2000))
    assert max(world.sizes[-8:]) > 100


def test_a_wait_that_the_sink_asks_for_is_granted(world):
    """A Retry-After longer than our own pause counts, up to an hour."""
    lane = world.lane()
    world.faults = [("send", SinkDownError("429", retry_after=90.0)), ("send", SinkDownError("429", retry_after=1e9))]
    world.turns(lane)
    assert lane.due == world.now + 90.0
    world.turns(lane, wait=90.0)
    assert lane.due == world.now + 3600.0


def test_a_sink_that_denies_us_is_asked_again_with_new_secrets(world):
    """A revoked token costs no row: the sink is made anew after a while, and goes on."""
    lane = world.lane()
    world.faults = [("send", SinkDeniesError("the server answered 401"))]
    world.turns(lane)
    assert lane.state.state == DENIED
    assert world.calls[-1] == ("close", None)
    assert lane.due == world.now + DENIED_WAIT
    world.turns(lane, 6, wait=DENIED_WAIT)
    assert sent(world) == list(range(10))
    assert [call for call, _ in world.calls].count("open") == 2


def test_an_address_that_cannot_be_used_is_a_reason_and_no_crash(world):
    """A placeholder that is not set makes the sink wait, with that sentence as the reason."""

    def make(_):
        raise UsageError("use sink fake", "the variable TOKEN is not set", "set it where the training runs")

    world.kind = make
    lane = world.lane()
    world.turns(lane)
    assert lane.state.state == DENIED
    assert "the variable TOKEN is not set" in lane.state.why


def test_a_poison_row_is_found_and_set_aside_with_the_reason(world):
    """The other rows of its portion arrive, and the refused one is kept in a file and counted."""
    world.poison = (5.0,)
    lane = world.lane()
    world.turns(lane, 20)
    assert sorted(sent(world)) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert (lane.state.sent_rows, lane.state.refused_rows) == (9, 1)
    kept = state_path(world.folder, ADDRESS.key, WRITER.node).with_suffix(".refused.jsonl").read_text()
    row = json.loads(kept)
    assert (row["seq"], row["values"], row["why"]) == (5, {"loss": 5.0}, "the server answered 400: bad value")


def test_one_bad_value_does_not_cost_the_others_of_its_row(tmp_path):
    """A row is divided into its values, unless the sink takes only whole rows."""
    for divides, expected in ((True, ["lr"]), (False, [])):
        world = World(make_run(tmp_path, run=f"run-{divides}"))
        leave_tail(world.folder, [{"loss": 5.0, "lr": 0.1}])
        world.poison, world.kind = (5.0,), type("Kind", (FakeSink,), {"divides_rows": divides})
        lane = world.lane()
        world.turns(lane, 5)
        assert [name for _, _, name in world.rows] == expected
        assert lane.state.refused_rows == 1


def test_a_sink_that_refuses_everything_loses_nothing(tmp_path):
    """If no row is taken, the fault is the sink's: rows wait, and arrive when it is mended."""
    world = World(make_run(tmp_path))
    leave_tail(world.folder, [{"loss": 5.0} for _ in range(100)])
    world.kind = type("Kind", (FakeSink,), {"most_points": 100})
    world.poison = (5.0,)
    lane = world.lane()
    world.turns(lane, 200)
    assert lane.state.state == DENIED
    assert lane.state.why.startswith("every row is refused")
    assert not lane.state.refused_rows
    world.poison = ()
    world.turns(lane, 200, wait=DENIED_WAIT)
    assert sorted(sent(world)) == list(range(100))


def test_points_that_a_sink_left_out_are_counted_and_not_repeated(world):
    """A partial success is final: the sink said how many it left out, and why."""
    world.receipt = Receipt(refused=1, why="out of order")
    lane = world.lane()
    world.turns(lane, 6)
    assert sent(world) == list(range(10))
    assert lane.state.refused_rows == 3


def test_live_rows_do_not_wait_for_a_backlog(world):
    """After an outage the oldest and the newest rows are sent in turn; in the end each was sent once."""
    world.now = START + 3600
    offset = round((world.now - 5.0) * 1e6 - CREATED)
    leave_tail(world.folder, [{"loss": float(number)} for number in range(8)], first=offset)
    lane = world.lane()
    world.turns(lane, 3)
    assert max(sent(world)) >= offset
    assert min(sent(world)) == 0
    world.turns(lane, 10)
    assert sorted(sent(world)) == [*range(10), *range(offset, offset + 8)]
    leave_tail(world.folder, [{"loss": 1.0}], first=offset + 8)
    world.turns(lane, 2, wait=2)
    assert lane.state.sent == {"0.0": [[0, offset + 8]]}


def test_a_sink_that_needs_order_gets_the_oldest_first(world):
    """A sink that refuses old rows never gets a newer one before them."""
    world.now = START + 3600
    offset = round((world.now - 5.0) * 1e6 - CREATED)
    leave_tail(world.folder, [{"loss": 1.0} for _ in range(8)], first=offset)
    world.kind = type("Kind", (FakeSink,), {"is_ordered": True})
    world.turns(world.lane(), 10)
    assert sent(world) == sorted(sent(world))
    assert LATE < 3600


def test_the_end_is_told_after_the_last_row(world):
    """When the run is over and the sink has everything, it hears how the run ended, and is closed."""
    lane = world.lane()
    world.turns(lane, 6)
    world.is_over, world.state = True, "failed"
    world.faults = [("report", SinkDownError("no answer in time"))]
    world.turns(lane, wait=10)
    assert not lane.is_done
    world.turns(lane, wait=10)
    assert lane.is_done
    assert world.reported[-1].state == "failed"
    assert world.calls[-1] == ("close", None)
    assert load_sink(world.folder, ADDRESS.key, WRITER.node).state == DONE


def test_an_end_that_could_not_be_finished_is_reported_again(world):
    """A sink that fails while it is closed is made anew, and hears again that the run has ended."""
    lane = world.lane()
    world.turns(lane, 6)
    world.is_over, world.state = True, "finished"
    world.faults = [("close", SinkDownError("W&B did not upload the rest in time"))]
    world.turns(lane, 2, wait=10)
    assert lane.is_done
    assert [news.state for news in world.reported] == ["running", "finished", "finished"]


def test_news_are_told_once(world):
    """The same news are not reported again, and changed ones are."""
    lane = world.lane()
    world.turns(lane, 5)
    world.turns(lane, 5, wait=20)
    assert len(world.reported) == 1
    world.state = "stalled"
    world.turns(lane, wait=20)
    assert [news.state for news in world.reported] == ["running", "stalled"]


def test_a_sink_without_rows_gets_the_last_values(world):
    """A sink that shows only the present is reported the last value of each metric."""
    world.kind = type("Kind", (FakeSink,), {"takes_rows": False})
    lane = world.lane()
    world.turns(lane, 5, wait=20)
    assert world.reported[-1].latest == {"loss": 9.0}
    assert not world.rows
    assert lane.state.behind_rows == 0


def test_a_fault_of_our_own_is_noted_and_the_rows_are_tried_again(world):
    """An unexpected exception in a sink is reported, and costs no row."""
    lane = world.lane()
    lane.fail(ZeroDivisionError("division by zero"))
    assert lane.problems == ["cannot send to fake: ZeroDivisionError: division by zero; trying again"]
    world.turns(lane, 6, wait=1)
    assert sent(world) == list(range(10))


def test_a_state_that_cannot_be_written_does_not_stop_the_sending(world, monkeypatch):
    """A full disk costs repetition after a crash, and no row."""

    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stepscope.store.sinks.replace", refuse)
    lane = world.lane()
    world.turns(lane, 6)
    assert sent(world) == list(range(10))
    assert "No space left on device" in lane.problems[0]


def test_the_file_of_refused_rows_does_not_grow_without_end(world, monkeypatch):
    """Beyond its limit refused rows are only counted."""
    monkeypatch.setattr("stepscope.exporters.sinks.refused.MOST_BYTES", 10)
    world.poison = (5.0,)
    lane = world.lane()
    world.turns(lane, 20)
    assert lane.state.refused_rows == 1
    assert not state_path(world.folder, ADDRESS.key, WRITER.node).with_suffix(".refused.jsonl").read_bytes()


def test_a_sink_that_cannot_be_used_is_still_behind(world):
    """What waits for a variable to be set is counted, so that the alert can fire; then all of it is sent."""

    def make(_):
        raise UsageError("use sink fake", "the variable TOKEN is not set", "set it where the training runs")

    world.kind = make
    lane = world.lane()
    world.turns(lane, 3, wait=DENIED_WAIT)
    assert lane.state.behind_rows == 10
    assert lane.state.behind_seconds > 2 * DENIED_WAIT
    lane._make = partial(FakeSink, world)
    world.turns(lane, 10, wait=DENIED_WAIT)
    assert sent(world) == list(range(10))


def test_what_waits_is_counted_while_a_sink_is_left_alone(world):
    """A long Retry-After does not hide how far the sink falls behind."""
    lane = world.lane()
    world.faults = [("send", SinkDownError("429", retry_after=3600.0))]
    world.turns(lane)
    before = lane.state.behind_seconds
    leave_tail(world.folder, [{"loss": 1.0}], first=10)
    world.turns(lane, wait=900)
    state = load_sink(world.folder, ADDRESS.key, WRITER.node)
    assert state.behind_seconds == pytest.approx(before + 900)
    assert state.behind_rows == 11


def test_what_comes_during_a_long_rest_is_counted(world):
    """Between two batches that are minutes apart the rows that wait are counted, and as old as the rest at most."""
    world.address = dataclasses.replace(ADDRESS, interval=300.0)
    lane = world.lane()
    world.turns(lane, 6)
    assert lane.due == world.now + 300.0
    world.turns(lane, wait=10)
    assert (lane.state.behind_rows, lane.state.behind_seconds) == (0, 0.0)
    leave_tail(world.folder, [{"loss": 1.0}], first=10)
    world.turns(lane, wait=10)
    assert (lane.state.behind_rows, lane.state.behind_seconds) == (1, 20.0)
    assert sent(world) == list(range(10))
    world.turns(lane, 2, wait=280)
    assert sent(world) == list(range(11))
    assert lane.state.behind_rows == 0


def test_the_end_of_a_run_does_not_wait_for_a_long_rest(world):
    """A sink with minutes between its batches gets the last rows and the end at once."""
    world.address = dataclasses.replace(ADDRESS, interval=300.0)
    lane = world.lane()
    world.turns(lane, 6)
    leave_tail(world.folder, [{"loss": 1.0}], first=10)
    world.state, world.is_over = "finished", True
    world.turns(lane, 3)
    assert lane.is_done
    assert sent(world) == list(range(11))
    assert world.reported[-1].state == "finished"


def test_the_end_of_a_run_does_not_shorten_the_pause_of_a_sink_that_is_down(world):
    """A Retry-After that was given for a report of a sink with all rows is honoured at the end as well."""
    lane = world.lane()
    world.turns(lane, 6)
    assert sent(world) == list(range(10))
    world.state, world.faults = "degraded", [("report", SinkDownError("429", retry_after=600.0))]
    world.turns(lane, wait=30.0)
    assert lane.due > world.now + 500
    calls = len(world.calls)
    world.state, world.is_over = "finished", True
    world.turns(lane, 5, wait=10.0)
    assert len(world.calls) == calls
    world.turns(lane, 3, wait=600.0)
    assert lane.is_done


def test_a_clock_that_is_set_back_does_not_stop_the_sending(world):
    """What was due tomorrow by the old clock is due now."""
    world.now += 86400
    lane = world.lane()
    world.turns(lane, 6)
    world.now -= 86400
    leave_tail(world.folder, [{"loss": 1.0}], first=10)
    world.turns(lane, 2)
    assert sent(world) == list(range(11))


@pytest.mark.parametrize("error", [SinkDownError("no answer in time"), SinkDeniesError("the server answered 401")])
def test_a_new_lane_does_not_repeat_the_reason_of_the_last_one(world, error):
    """A command that is started after the fault was mended must not give up for what a sender met before it."""
    world.faults = [("open", error)]
    world.turns(world.lane())
    assert load_sink(world.folder, ADDRESS.key, WRITER.node).why
    world.now += 7200
    lane = world.lane()
    assert (lane.state.state, lane.state.why, lane.state.since) == (WAITING, "", world.now)


def test_a_deleted_run_does_not_come_back(world):
    """What a lane notes after its run was deleted makes no new folder for it."""
    lane = world.lane()
    world.faults = [("send", SinkDownError("503"))] * 9
    world.turns(lane)
    shutil.rmtree(world.folder.path)
    world.turns(lane, 3, wait=60)
    lane.close()
    assert not world.folder.path.exists()
