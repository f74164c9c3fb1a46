from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from stepscope.alerts.delivery.channel import QuietHours


def at(hour, minute=0, zone="Europe/Berlin", day=2):
    return datetime(2026, 3, day, hour, minute, tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("text", "hour", "until"),
    [
        ("22:00-07:00 Europe/Berlin", 23, at(7, day=3)),
        ("22:00-07:00 Europe/Berlin", 3, at(7)),
        ("22:00-07:00 Europe/Berlin", 7, None),
        ("22:00-07:00 Europe/Berlin", 21, None),
        ("12:00-14:00 Europe/Berlin", 13, at(14)),
        ("12:00-14:00 Europe/Berlin", 14, None),
        ("12:00-24:00 Europe/Berlin", 20, at(0, day=3)),
    ],
)
def test_hours_hold_from_their_begin_to_their_end(text, hour, until):
    """Over midnight too, and in the time zone that they name."""
    assert QuietHours.parse(text).until(at(hour)) == until


@pytest.mark.parametrize("text", ["22-7", "25:00-07:00", "22:61-07:00", "22:00-07:00 Nowhere/Land", "", "x" * 1000])
def test_what_is_no_span_is_refused(text):
    """With a sentence that shows how to write one."""
    with pytest.raises(ValueError, match=r"hours|zone"):
        QuietHours.parse(text)


def test_without_a_zone_it_is_the_machines_own():
    """Any moment of a span that covers the whole day but a minute is quiet."""
    assert QuietHours.parse("00:00-23:59").until(datetime(2026, 3, 2, 12).astimezone().timestamp()) is not None
