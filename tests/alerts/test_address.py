"""Rule S19: where a message may go, seen when the connection is made."""

from __future__ import annotations

import socket

import pytest

from stepscope.alerts.address import AddressError, guarded, refusal

METADATA = ["169.254.169.254", "fe80::1", "fd00:ec2::254", "100.100.100.200", "::ffff:169.254.169.254", "0.0.0.0"]
PRIVATE = ["127.0.0.1", "::1", "10.0.0.1", "192.168.1.1", "172.16.3.4", "100.64.0.1", "::ffff:10.0.0.1", "fd12::1"]


@pytest.mark.parametrize("address", METADATA)
def test_rule_s19_link_local_and_metadata_are_refused_whatever_is_allowed(address):
    """Nobody means these; whoever is led there is being misled."""
    assert refusal(address, private=True)
    assert refusal(address, private=False)


@pytest.mark.parametrize("address", PRIVATE)
def test_rule_s19_private_addresses_need_a_word(address):
    """Networks of one's own are allowed by the configuration only."""
    assert "alerting.private_addresses" in refusal(address, private=False)
    assert not refusal(address, private=True)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111"])
def test_public_addresses_are_fine(address):
    """As they always are."""
    assert not refusal(address, private=False)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "2130706433", "0x7f.1", "127.1", "::1"])
def test_rule_s19_spellings_of_an_address_do_not_help(host):
    """Decimal, hexadecimal and short forms are resolved before they are looked at."""
    with pytest.raises(AddressError, match="is refused"):
        guarded(socket.getaddrinfo, private=False)(host, 80)


def test_rule_s19_a_name_that_resolves_anew_changes_nothing():
    """What is connected to is what was looked at, and a single bad address among good ones refuses them all."""
    answers = [[(socket.AF_INET, 1, 6, "", ("8.8.8.8", 80))], [(socket.AF_INET, 1, 6, "", ("127.0.0.1", 80))]]
    look_up = guarded(lambda *_: answers.pop(0), private=False)
    assert look_up("rebind.example", 80)[0][4] == ("8.8.8.8", 80)
    with pytest.raises(AddressError):
        look_up("rebind.example", 80)
