"""The channels of the configuration and their quiet hours. No message and no file contains their secrets."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

from stepscope.core.errors import UsageError
from stepscope.core.secrets import HOLE, filled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SEVERITIES = ("info", "warning", "critical")
APPRISE, WEBHOOK, ALERTMANAGER = "apprise", "webhook", "alertmanager"
KEYS = ("url", "name", "secret", "severity", "quiet_hours")
MAIL = ("mailto", "mailtos")
SLACK_HOST = "hooks.slack.com"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_NATIVE = ("hooks.slack.com", "discord.com", "discordapp.com", "webhook.office.com", "outlook.office.com", "ntfy.sh")
"""Hosts whose https addresses apprise handles itself."""
_HOURS = re.compile(r"\s*(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})(?:\s+([A-Za-z][\w+/-]{1,60}))?\s*")
_DAY = 24 * 60


class QuietHours(NamedTuple):
    """Hours of each day in which only critical alerts are sent; minutes since midnight.

    Hours that end before they begin include midnight.
    """

    begin: int
    end: int
    zone: str = ""
    """Name of the time zone, as in Europe/Berlin; empty for the machine's."""

    @classmethod
    def parse(cls, text: str) -> QuietHours:
        """Parse "22:00-07:00" or "22:00-07:00 Europe/Berlin"; ValueError if the text is something else."""
        found = _HOURS.fullmatch(text)
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
        """Return the time zone; None for the machine's."""
        return ZoneInfo(self.zone) if self.zone else None

    def until(self, now: float) -> float | None:
        """Return when the quiet hours end that include `now` (unix seconds); None outside of quiet hours."""
        here = datetime.fromtimestamp(now, self.timezone())
        minute = here.hour * 60 + here.minute
        if (minute - self.begin) % _DAY >= (self.end - self.begin) % _DAY:
            return None
        end = here.replace(second=0, microsecond=0) + timedelta(minutes=(self.end - minute) % _DAY)
        return max(now + 1.0, end.timestamp())


@dataclass(frozen=True)
class Channel:
    """One way to notify people. Its `repr` and `name` hold no secret."""

    name: str
    """Shown to people and in the outbox: a scheme and a number, or the configured name."""
    kind: str
    """apprise, webhook or alertmanager."""
    scheme: str
    url: str = field(repr=False)
    """As configured: with placeholders such as ${TOKEN} or ${file:/run/secrets/token}."""
    secret: str = field(default="", repr=False)
    severity: str = "info"
    """The lowest severity that is sent."""
    quiet: QuietHours | None = None

    @property
    def key(self) -> str:
        """Identifies the channel in the outbox; stays the same while name and address do."""
        return hashlib.sha256(f"{self.name}\0{self.url}".encode()).hexdigest()[:12]

    def takes(self, severity: str) -> bool:
        """Return whether alerts of this severity are sent here."""
        return rank_of(severity) >= rank_of(self.severity)

    def address(self, environ: Mapping[str, str] = os.environ) -> str:
        """Return the address with its placeholders filled; UsageError if one cannot be."""
        return filled(self.url, environ, f"use channel {self.name}")

    def signing_secret(self, environ: Mapping[str, str] = os.environ) -> str:
        """Return the secret that signs messages; "" without one."""
        return filled(self.secret, environ, f"use channel {self.name}")


def rank_of(severity: str) -> int:
    """Return the rank of a severity, 0 to 2; an unknown one counts as a warning."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else 1


def channels_of(settings: Mapping[str, Any]) -> tuple[list[Channel], list[str]]:
    """Return the valid channels of a configuration, and its problems as sentences.

    It reads `alerting.channels`, `alerting.quiet_hours`, `alerting.email` and `alerting.slack`.
    """
    problems: list[str] = []
    general = _quiet(settings.get("alerting.quiet_hours"), "alerting.quiet_hours", problems)
    given = settings.get("alerting.channels") or ()
    found: list[Channel] = []
    for number, item in enumerate([given] if isinstance(given, (str, dict)) else given, 1):
        try:
            found.append(_channel(item, number, general, {channel.name for channel in found}))
        except UsageError as error:
            problems.append(str(error))
    kept = [channel for channel in found if _is_on(channel, settings)]
    return kept, problems + _missing(settings, found)


def _quiet(text: object, where: str, problems: list[str]) -> QuietHours | None:
    if not text:
        return None
    try:
        return QuietHours.parse(str(text))
    except ValueError as error:
        problems.append(str(UsageError(f"read {where}", error, "or leave it out")))
        return None


def _channel(item: object, number: int, general: QuietHours | None, taken: Iterable[str]) -> Channel:
    what = f"use channel {number} of alerting.channels"
    facts: dict[str, Any] = {"url": item} if isinstance(item, str) else dict(item) if isinstance(item, dict) else {}
    url = facts.get("url")
    if not isinstance(url, str) or not url.strip():
        raise UsageError(what, "it has no address", "give an apprise URL, an https:// address, or a mapping with url")
    unknown = sorted(set(facts) - set(KEYS))
    if unknown:
        raise UsageError(what, f"it has the unknown key {unknown[0][:40]!r}", f"known are {', '.join(KEYS)}")
    problems: list[str] = []
    quiet = _quiet(facts.get("quiet_hours"), f"quiet_hours of channel {number}", problems) or general
    severity = str(facts.get("severity") or "info").lower()
    if problems:
        raise UsageError(what, problems[0], "the channel is left out until then")
    if severity not in SEVERITIES:
        raise UsageError(what, f"there is no severity {severity[:40]!r}", f"known are {', '.join(SEVERITIES)}")
    kind, scheme = _kind(url.strip(), what)
    name = str(facts.get("name") or f"{scheme}-{number}")[:60]
    if name in taken:
        name = f"{name}-{number}"
    return Channel(name, kind, scheme, url.strip(), str(facts.get("secret") or ""), severity, quiet)


def _kind(url: str, what: str) -> tuple[str, str]:
    """Return which sender handles an address, and its scheme; apprise gets an address that is one placeholder."""
    found = _SCHEME.match(url)
    if found is None:
        if HOLE.match(url):
            return APPRISE, "channel"
        raise UsageError(what, "its address has no scheme", "begin it with mailtos://, slack://, https:// or another")
    scheme = found[1].lower()
    host = re.split(r"[/?#:]", url[found.end() :].rpartition("@")[2], maxsplit=1)[0].lower()
    if scheme.startswith("alertmanager+"):
        return ALERTMANAGER, "alertmanager"
    if scheme in {"http", "https"} and not any(host == one or host.endswith(f".{one}") for one in _NATIVE):
        return WEBHOOK, "webhook"
    if scheme == "https":
        return APPRISE, "slack" if host == SLACK_HOST else host.split(".")[-2] if "." in host else "https"
    return APPRISE, scheme


def _is_on(channel: Channel, settings: Mapping[str, Any]) -> bool:
    """Return whether the switches for mail and Slack leave a channel on."""
    switch = "alerting.email" if channel.scheme in MAIL else f"alerting.{channel.scheme}"
    return bool(settings.get(switch, True)) if channel.scheme in {*MAIL, "slack"} else True


def _missing(settings: Mapping[str, Any], found: list[Channel]) -> list[str]:
    """Return a problem for each switch that is on and has no channel."""
    schemes = {channel.scheme for channel in found}
    mail = "mailtos://user:${MAIL_PASSWORD}@server:587?mode=starttls&to=you@example.com"
    wanted = [
        ("email", "mail", set(MAIL), mail),
        ("slack", "Slack", {"slack", "channel"}, "https://hooks.slack.com/services/${SLACK_TOKEN}"),
    ]
    return [
        f"cannot send {what}: alerting.{switch} is on, but alerting.channels has none; add one such as {example}"
        for switch, what, known, example in wanted
        if settings.get(f"alerting.{switch}") and not schemes & known
    ]
