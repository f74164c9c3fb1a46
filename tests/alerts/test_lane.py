"""When a channel is told what, with a clock that the test holds."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from stepscope.alerts.delivery import lane as lanes
from stepscope.alerts.delivery.channel import Channel, QuietHours
from stepscope.alerts.delivery.lane import GIVE_UP, LONGEST_WAIT, PACE, ChannelLane
from stepscope.alerts.delivery.outbox import DEAD, DONE, FAILED, SKIPPED, TRY, Entry, Note

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=timezone.utc).timestamp()
NIGHT = datetime(2026, 3, 2, 23, 30, tzinfo=timezone.utc).timestamp()


def lane_of(**more):
    channel = Channel("hook", "webhook", "webhook", "https://example.com", **more)
    return ChannelLane(channel, name="run", vary=lambda: 0.5)


def entry(number, now=NOON, **more):
    return Entry(
        number, {"rule": "r", "alert": f"a{number}", "state": "firing", "severity": "warning", "time": now, **more}
    )


def test_what_comes_within_a_second_is_one_message():
    """The first alert goes at once, everything that follows within a second in one more message."""
    lane = lane_of()
    lane.add(entry(0), NOON)
    assert lane.begin(NOON).numbers == (0,)
    lane.sent(NOON)
    for number in range(1, 1000):
        lane.add(entry(number), NOON)
    assert lane.begin(NOON + PACE - 0.01) is None
    assert len(lane.begin(NOON + PACE).numbers) == 999
    lane.sent(NOON + PACE)
    assert lane.due(NOON + PACE) is None


def test_a_failure_is_tried_again_later_and_later():
    """Waits double up to a limit, vary by a quarter, and the message stays the same."""
    lane = lane_of()
    lane.add(entry(0), NOON)
    now, waits, ids = NOON, [], set()
    for _ in range(14):
        ids.add(lane.begin(now).id)
        note = lane.failed(now, "the server answered 500")
        assert note.state == FAILED
        waits.append(lane.due(now) - now)
        lane.add(entry(1), now)
        now = lane.due(now)
    assert len(ids) == 1
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == LONGEST_WAIT
    short, long = (ChannelLane(lane.channel, vary=lambda end=end: end) for end in (0.0, 1.0))
    for other, wait in ((short, 6.0), (long, 10.0)):
        other.add(entry(0), NOON)
        other.begin(NOON)
        other.failures = 3
        other.failed(NOON, "")
        assert other.due(NOON) - NOON == pytest.approx(wait)


def test_retry_after_is_honoured():
    """A server that names a time is not asked before, but one that names a year is asked within an hour."""
    lane = lane_of()
    lane.add(entry(0), NOON)
    lane.begin(NOON)
    lane.failed(NOON, "the server answered 429", retry_after=42.0)
    assert lane.due(NOON) == NOON + 42.0
    lane.begin(NOON + 42)
    lane.failed(NOON + 42, "the server answered 429", retry_after=1e9)
    assert lane.due(NOON) == NOON + 42 + lanes.LONGEST_ASKED


def test_a_message_is_given_up_after_a_day():
    """What nobody takes for a day is dead, said so, and no longer tried."""
    lane = lane_of()
    lane.add(entry(0), NOON)
    lane.begin(NOON)
    assert lane.failed(NOON, "x").state == FAILED
    lane.begin(NOON + GIVE_UP + 1)
    assert lane.failed(NOON + GIVE_UP + 1, "x").state == DEAD
    assert lane.due(NOON + GIVE_UP + 1) is None


def test_a_notifier_that_was_killed_is_followed_by_one_that_sends_the_same_message():
    """The message that was on its way goes again with the same id and the same alerts, later ones in another."""
    first = lane_of()
    for number in range(3):
        first.add(entry(number), NOON)
    group = first.begin(NOON)
    note = first.note(TRY, NOON)
    second = lane_of()
    second.restore(note)
    for number in range(5):
        second.add(entry(number), NOON)
    second.resume()
    again = second.begin(NOON)
    assert (again.id, again.numbers) == (group.id, (0, 1, 2))
    done = second.sent(NOON)
    assert done.state == DONE
    third = lane_of()
    for one in (note, done):
        third.restore(one)
    for number in range(5):
        third.add(entry(number), NOON)
    third.resume()
    assert third.begin(NOON + 2).numbers == (3, 4)


def test_a_channel_is_told_what_is_severe_enough():
    """Below its severity nothing is told, neither when it fires nor when it is resolved."""
    lane = lane_of(severity="critical")
    lane.add(entry(0), NOON)
    lane.add(entry(1, severity="critical"), NOON)
    lane.add(entry(2, state="resolved", severity="warning"), NOON)
    lane.add(entry(3, state="resolved", severity="critical"), NOON)
    assert lane.begin(NOON).numbers == (1, 3)
    assert lane.skipped(NOON).numbers == (0, 2)
    assert lane.skipped(NOON) is None


def test_resolve_messages_can_be_left_out():
    """Where the configuration says so, only what fires is told."""
    lane = ChannelLane(lane_of().channel, resolved=False)
    lane.add(entry(0, state="resolved"), NOON)
    assert lane.due(NOON) is None


@pytest.mark.promise("S0-083")
def test_at_night_only_critical_alerts_are_told():
    """Others wait for the morning, and come then as one message."""
    lane = lane_of(quiet=QuietHours.parse("22:00-07:00 UTC"))
    lane.add(entry(0, NIGHT), NIGHT)
    lane.add(entry(1, NIGHT, severity="critical"), NIGHT)
    assert lane.begin(NIGHT).numbers == (1,)
    lane.sent(NIGHT)
    lane.add(entry(2, NIGHT, state="resolved", severity="critical"), NIGHT)
    assert lane.due(NIGHT + 2) == NIGHT + 7.5 * 3600
    assert lane.begin(NIGHT + 60) is None
    assert lane.begin(NIGHT + 7.5 * 3600).numbers == (0, 2)


def test_a_test_reaches_its_channel_at_any_hour():
    """An entry for one channel goes to no other, whatever the hour and the severity."""
    lane = lane_of(quiet=QuietHours.parse("00:00-24:00 UTC"), severity="critical")
    quiet = lane_of(quiet=QuietHours.parse("22:00-07:00 UTC"), severity="critical")
    for other in (lane, quiet):
        other.add(entry(0, NIGHT)._replace(only="hook"), NIGHT)
        other.add(entry(1, NIGHT)._replace(only="another"), NIGHT)
        assert other.begin(NIGHT).numbers == (0,)


def test_old_alerts_are_not_told_to_a_new_channel():
    """A channel that is added to a run a day later does not get its whole history."""
    lane = lane_of()
    lane.add(entry(0, NOON - GIVE_UP - 1), NOON)
    lane.add(entry(1), NOON)
    assert lane.begin(NOON).numbers == (1,)


def test_notes_of_an_earlier_notifier_leave_what_was_sent_alone():
    """Entries that are done are never sent again; without an unfinished message there is none to resume."""
    lane = lane_of()
    lane.restore(lane.note(TRY, NOON))
    lane.restore(Note(lane.channel.key, "g", DONE, (0,), NOON))
    lane.restore(Note(lane.channel.key, "", SKIPPED, (1,), NOON))
    for number in range(3):
        lane.add(entry(number), NOON)
    lane.resume()
    assert lane.begin(NOON).numbers == (2,)
