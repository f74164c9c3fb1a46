"""What apprise says about a message becomes an outcome without secrets."""

from __future__ import annotations

import logging
import threading

import pytest

from stepscope.alerts.delivery import apprise_channel
from stepscope.alerts.delivery.apprise_channel import send, tell
from stepscope.alerts.delivery.message import Message, MessageSubject
from tests.alerts.servers import alert

ADDRESS = "json://me:s3cretword@hook.example/t0kenvalue"
LOG = logging.getLogger("apprise")


class Plugin:
    """A plugin of apprise that does what the test says."""

    def __init__(self, act):
        self.act, self.given = act, []

    def notify(self, **given):
        self.given.append(given)
        return self.act()


@pytest.fixture
def plugin(monkeypatch):
    made = Plugin(lambda: True)
    monkeypatch.setattr(apprise_channel, "service", lambda _: made)
    return made


def test_an_address_that_apprise_does_not_know_fails():
    """Nothing is sent, and the outcome says why."""
    assert tell("nothing://x", "title", "text").why == "apprise does not know this address"


def test_a_plugin_that_raises_is_a_failure_without_secrets(plugin):
    """A hundred plugins may raise anything; no part of the address gets into the cause."""

    def act():
        raise RuntimeError("no route to t0kenvalue with s3cretword")

    plugin.act = act
    outcome = tell(ADDRESS, "title", "text")
    assert (outcome.ok, outcome.why) == (False, "RuntimeError: no route to *** with ***")


def test_the_last_complaint_of_this_thread_is_the_cause(plugin):
    """Apprise only logs why it failed; what another thread logs meanwhile is not ours."""

    def act():
        LOG.warning("Failed to send to %s", "t0kenvalue")
        LOG.info("nothing")
        other = threading.Thread(target=LOG.warning, args=("of another channel",))
        other.start()
        other.join()

    plugin.act = act
    assert tell(ADDRESS, "title", "text").why == "Failed to send to ***"
    plugin.act = lambda: LOG.debug("Socket Exception: connection refused")
    assert tell(ADDRESS, "title", "text").why == "connection refused"
    plugin.act = lambda: False
    assert tell(ADDRESS, "title", "text").why == "it was not accepted"


@pytest.mark.parametrize(("address", "form"), [("mailto://me@mail.example", "html"), ("json://hook.example", "text")])
def test_mail_gets_html_and_chats_get_inert_text(plugin, address, form):
    """Only mail renders our HTML; a chat gets text in which nothing acts."""
    message = Message("id", MessageSubject("r"), [alert(text="see @everyone")])
    assert send(message, address).ok
    [given] = plugin.given
    assert given["body_format"].value == form
    assert ("@everyone" in given["title"]) is (form == "html")
    assert given["notify_type"].value == "warning"
