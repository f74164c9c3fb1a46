from __future__ import annotations

import pytest

from stepscope.alerts.delivery.channel import ALERTMANAGER, APPRISE, WEBHOOK, channels_of
from stepscope.core.errors import UsageError


def channels(*given, **more):
    return channels_of({"alerting.channels": given, **{f"alerting.{key}": value for key, value in more.items()}})


@pytest.mark.promise("S2-064")
@pytest.mark.parametrize(
    ("url", "kind", "scheme"),
    [
        ("mailtos://u:p@mail.example.com:587?mode=starttls&to=a@b.c", APPRISE, "mailtos"),
        ("https://hooks.slack.com/services/T/B/X", APPRISE, "slack"),
        ("slack://T/B/X", APPRISE, "slack"),
        ("https://discord.com/api/webhooks/1/abc", APPRISE, "discord"),
        ("ntfys://ntfy.example.com/topic", APPRISE, "ntfys"),
        ("pover://user@token", APPRISE, "pover"),
        ("tgram://bot/chat", APPRISE, "tgram"),
        ("https://example.com/hook", WEBHOOK, "webhook"),
        ("alertmanager+http://am:9093", ALERTMANAGER, "alertmanager"),
        ("${ALERT_URL}", APPRISE, "channel"),
    ],
)
def test_an_address_says_what_sends_to_it(url, kind, scheme):
    """Apprise, our own signed webhook, or the API of Alertmanager."""
    [[channel], problems] = channels(url)
    assert (channel.kind, channel.scheme, problems) == (kind, scheme, [])


def test_a_channel_shows_no_secret():
    """Neither its name nor its text has anything of the address."""
    [[channel], _] = channels(
        {"url": "mailtos://me:hunter2@mail.example.com", "secret": "whsec_x", "severity": "critical"}
    )
    assert "hunter2" not in repr(channel)
    assert "whsec" not in repr(channel)
    assert channel.name == "mailtos-1"


def test_secrets_come_from_the_environment_or_a_file(tmp_path):
    """They are looked up when a message is sent, and one that is missing is told by its name."""
    file = tmp_path / "token"
    file.write_text("from-file\n")
    [[channel], _] = channels({"url": "https://example.com/${TOKEN}", "secret": f"${{file:{file}}}"})
    assert channel.address({"TOKEN": "abc"}) == "https://example.com/abc"
    assert channel.signing_secret({}) == "from-file"
    with pytest.raises(UsageError, match="the variable TOKEN is not set"):
        channel.address({})
    file.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        channel.signing_secret({})


@pytest.mark.parametrize(
    ("item", "cause"),
    [
        ("example.com", "no scheme"),
        (3, "no address"),
        ({"name": "x"}, "no address"),
        ({"url": "https://x.y", "colour": 1}, "unknown key 'colour'"),
        ({"url": "https://x.y", "severity": "bad"}, "no severity 'bad'"),
        ({"url": "https://x.y", "quiet_hours": "night"}, "22:00-07:00"),
    ],
)
def test_a_wrong_channel_is_told_and_the_others_go_on(item, cause):
    """What is wrong is said without the address."""
    [found, [problem]] = channels(item, "https://hunter2.example.com")
    assert [channel.name for channel in found] == ["webhook-2"]
    assert cause in problem
    assert "hunter2" not in problem


@pytest.mark.promise("S0-077")
def test_switches_for_mail_and_slack():
    """They turn such channels off; on, by the user's own word, they say what is missing."""
    urls = ("mailtos://u:p@m.example.com", "slack://T/B/X", "https://example.com")
    [found, problems] = channels(*urls, email=False)
    assert ([channel.scheme for channel in found], problems) == (["slack", "webhook"], [])
    [found, problems] = channels(email=True, slack=True)
    assert found == []
    assert [problem.split(":")[0] for problem in problems] == ["cannot send mail", "cannot send Slack"]


def test_names_are_unique_and_keys_stay():
    """Two channels of one name are told apart; the key of one depends on nothing but itself."""
    [found, _] = channels({"url": "https://a.b", "name": "team"}, {"url": "https://c.d", "name": "team"})
    assert [channel.name for channel in found] == ["team", "team-2"]
    [[alone], _] = channels({"url": "https://a.b", "name": "team"})
    assert alone.key == found[0].key != found[1].key
