"""Rule S19: where a message may go, seen when the connection is made."""

from __future__ import annotations

import socket

import pytest

from stepscope.alerts.delivery.allowed_addresses import AddressError, guard_this_process, guarded, hosts_of, refusal
from stepscope.alerts.delivery.channel import channels_of

METADATA = ["169.254.169.254", "fe80::1", "fd00:ec2::254", "100.100.100.200", "::ffff:169.254.169.254", "0.0.0.0"]
PRIVATE = ["127.0.0.1", "::1", "10.0.0.1", "192.168.1.1", "172.16.3.4", "100.64.0.1", "::ffff:10.0.0.1", "fd12::1"]


@pytest.mark.parametrize("address", METADATA)
def test_link_local_and_metadata_are_refused_whatever_is_allowed(address):
    """Nobody means these; whoever is led there is being misled."""
    assert refusal(address, private=True)
    assert refusal(address, private=False)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_need_a_word(address):
    """Networks of one's own are allowed by the configuration only."""
    assert "alerting.channels does not name it" in refusal(address, private=False)
    assert not refusal(address, private=True)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111"])
def test_public_addresses_are_fine(address):
    """As they always are."""
    assert not refusal(address, private=False)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "2130706433", "0x7f.1", "127.1", "::1"])
def test_spellings_of_an_address_do_not_help(host):
    """Decimal, hexadecimal and short forms are resolved before they are looked at."""
    with pytest.raises(AddressError, match="is refused"):
        guarded(socket.getaddrinfo, private=False)(host, 80)


def test_a_name_that_resolves_anew_changes_nothing():
    """What is connected to is what was looked at, and a single bad address among good ones refuses them all."""
    answers = [[(socket.AF_INET, 1, 6, "", ("8.8.8.8", 80))], [(socket.AF_INET, 1, 6, "", ("127.0.0.1", 80))]]
    look_up = guarded(lambda *_: answers.pop(0), private=False)
    assert look_up("rebind.example", 80)[0][4] == ("8.8.8.8", 80)
    with pytest.raises(AddressError):
        look_up("rebind.example", 80)


def answer(*addresses):
    """Return what a resolver says."""
    return [(socket.AF_INET6 if ":" in one else socket.AF_INET, 1, 6, "", (one, 80)) for one in addresses]


@pytest.mark.parametrize("address", [*PRIVATE, "8.8.8.8"])
def test_servers_that_the_configuration_names_are_told(address):
    """A webhook, mail server or Alertmanager of one's own needs no further word, by name or by address."""
    look_up = guarded(lambda *_: answer(address), named={"mail.corp"})
    assert look_up("Mail.corp", 25)[0][4][0] == address
    assert look_up(b"mail.corp", 25)


@pytest.mark.parametrize("address", METADATA)
def test_naming_them_opens_no_credentials(address):
    """Link-local addresses and those of clouds stay refused for a named host, also if it is the address itself."""
    for host in ("mail.corp", address):
        with pytest.raises(AddressError, match="cloud keeps credentials"):
            guarded(lambda *_: answer(address), named={"mail.corp", address})(host, 25)


def test_other_hosts_stay_outside():
    """What no channel names, as where a service of apprise is led to, may not be private."""
    with pytest.raises(AddressError, match=r"10\.0\.0\.1 is refused: it is on this machine or a private network"):
        guarded(lambda *_: answer("10.0.0.1"), named={"mail.corp"})("hooks.slack.com", 443)


def test_a_name_that_is_led_elsewhere_is_refused():
    """A named host that is public, now or before, leads to no private address: not mixed, and not anew."""
    with pytest.raises(AddressError, match="public addresses as well"):
        guarded(lambda *_: answer("8.8.8.8", "127.0.0.1"), named={"hook.example"})("hook.example", 443)
    answers = [answer("8.8.8.8"), answer("127.0.0.1")]
    look_up = guarded(lambda *_: answers.pop(0), named={"hook.example"})
    assert look_up("hook.example", 443)
    with pytest.raises(AddressError, match="public addresses as well"):
        look_up("hook.example", 443)


def test_hosts_are_taken_from_every_kind_of_channel():
    """Web addresses, Alertmanagers, and mail servers, also those in the query; holes are filled first."""
    urls = [
        "https://Hook.corp/x",
        "alertmanager+http://10.0.0.9:9093",
        "mailtos://me:${SECRET}@corp.example:587?smtp=mail.corp&to=a@b.example",
        "http://[::1]:8080/",
        "https://${MISSING}.corp/",
    ]
    channels, _ = channels_of({"alerting.channels": urls})
    assert hosts_of(channels, {"SECRET": "x"}) == {"hook.corp", "10.0.0.9", "corp.example", "mail.corp", "::1"}


def test_what_is_no_address_is_refused():
    """A resolver that answers with something else leads nowhere."""
    assert refusal("nowhere", private=True) == "it is no address"


def test_the_notifier_connects_only_where_messages_may_go(monkeypatch):
    """The guard of a whole process refuses every address but the servers that the configuration names."""
    resolved = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments: resolved)
    guard_this_process({"alerting.channels": ["http://mine.example/x"]}, {})
    assert socket.getaddrinfo("mine.example", 80) == resolved
    with pytest.raises(AddressError, match=r"127\.0\.0\.1 is refused"):
        socket.getaddrinfo("other.example", 80)
