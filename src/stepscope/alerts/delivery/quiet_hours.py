"""Hours of the day in which only critical alerts are sent; the others wait until morning."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

_SPAN = re.compile(r"\s*(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})(?:\s+([A-Za-z][\w+/-]{1,60}))?\s*")
_DAY = 24 * 60


class QuietHours(NamedTuple):
    """A span of each day, in minutes since midnight; one that ends before it begins goes over midnight."""

    begin: int
    end: int
    zone: str = ""
    """Name of the time zone, as in Europe/Berlin; empty is the machine's own."""

    @classmethod
    def parse(cls, text: str) -> QuietHours:
        """Read "22:00-07:00" or "22:00-07:00 Europe/Berlin".

        Raises:
            ValueError: it is no such span.
        """
        found = _SPAN.fullmatch(text)
        if found is None:
            raise ValueError('no hours; write them as "22:00-07:00", or "22:00-07:00 Europe/Berlin"')
        begin, end = (int(found[at]) * 60 + int(found[at + 1]) for at in (1, 3))
        if max(begin, end) > _DAY or int(found[2]) > 59 or int(found[4]) > 59:
            raise ValueError("a day has the hours 00:00 to 24:00")
        hours = cls(begin % _DAY, end % _DAY, found[5] or "")
        try:
            hours.timezone()
        except (OSError, ValueError, KeyError):
            raise ValueError(f"there is no time zone {hours.zone!r} on this machine") from None
        return hours

    def timezone(self) -> tzinfo | None:
        """Return the time zone; None for the machine's own."""
        return ZoneInfo(self.zone) if self.zone else None

    def until(self, now: float) -> float | None:
        """Return when the quiet that holds at `now` (unix seconds) ends; None if it does not hold."""
        here = datetime.fromtimestamp(now, self.timezone())
        minute = here.hour * 60 + here.minute
        is_quiet = (
            self.begin <= minute < self.end if self.begin <= self.end else minute >= self.begin or minute < self.end
        )
        if not is_quiet:
            return None
        left = (self.end - minute) % _DAY
        end = here.replace(second=0, microsecond=0) + timedelta(minutes=left)
        return max(now + 1.0, end.timestamp())
