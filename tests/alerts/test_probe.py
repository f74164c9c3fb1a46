"""Whether a channel would accept a message is found out without sending one."""

from __future__ import annotations

import pytest

from stepscope.alerts.delivery.channel import channels_of
from stepscope.alerts.delivery.probe import insecure, probe
from tests.alerts.servers import Hook
from tests.integration.processes import free_port


def channel(url, **more):
    [found], _ = channels_of({"alerting.channels": [{"url": url, **more}]})
    return found


@pytest.fixture
def hook():
    made = Hook()
    yield made
    made.close()


@pytest.mark.parametrize("form", ["http://{}/x", "alertmanager+http://{}", "json://{}"])
def test_a_server_that_listens_is_fine_and_hears_nothing(hook, form):
    """A web address, an Alertmanager and a service of apprise are connected to, and nothing is sent."""
    address = form.format(hook.url.removeprefix("http://").replace("127.0.0.1", "localhost"))
    assert probe(channel(address), {}) == ""
    assert hook.requests == []


@pytest.mark.parametrize("form", ["http://localhost:{}/", "json://localhost:{}"])
def test_a_server_that_is_not_there_is_named(form):
    """Where nobody listens the cause is that of the connection."""
    assert "refused" in probe(channel(form.format(free_port())), {})


def test_a_server_without_tls_is_no_https(hook):
    """https is shaken hands with, so a plain server behind it is found at once."""
    assert "SSL" in probe(channel(hook.url.replace("http://", "https://")), {})


def test_an_address_with_a_hole_names_the_variable():
    """A variable that is not set is the cause, with what to do."""
    assert "MISSING" in probe(channel("https://hooks.example/${MISSING}"), {})


@pytest.mark.parametrize(
    ("url", "more", "word"),
    [
        ("http://hook.example/", {}, "use https://"),
        ("alertmanager+http://own.example", {}, "use https://"),
        ("json://hook.example/", {}, "use jsons://"),
        ("https://hook.example/", {}, "not signed"),
        ("https://hook.example/", {"secret": "s3cret"}, ""),
        ("alertmanager+https://own.example", {}, ""),
    ],
)
def test_what_is_not_safe_is_told(url, more, word):
    """A channel without encryption or signature works, and the advice says what to change."""
    found = insecure(channel(url, **more))
    assert word in found
    assert bool(found) is bool(word)
