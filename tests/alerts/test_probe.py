"""Whether a channel would accept a message is found out without sending one."""

from __future__ import annotations

import smtplib
import socket
import ssl
import threading
from types import SimpleNamespace

import pytest

from stepscope.alerts.delivery import probe as probes
from stepscope.alerts.delivery.channel import channels_of
from stepscope.alerts.delivery.probe import insecure, probe
from tests.alerts.servers import Hook, make_certificate
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


def test_a_trusted_server_shakes_hands(tmp_path, monkeypatch):
    """An https server with a valid certificate is fine after the handshake."""
    certificate, key = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def shake_hands():
            connection, _ = server.accept()
            with context.wrap_socket(connection, server_side=True) as secured:
                secured.recv(1)

        shaking = threading.Thread(target=shake_hands)
        shaking.start()
        assert probe(channel(f"https://localhost:{server.getsockname()[1]}/"), {}) == ""
        shaking.join()


@pytest.mark.parametrize(
    ("url", "why"), [("nothing://x", "apprise does not know"), ("alertmanager+ftp://own.example", "no web address")]
)
def test_an_address_that_nobody_knows_is_refused_without_a_connection(url, why):
    """The cause names who does not know it."""
    assert why in probe(channel(url), {})


def test_a_service_whose_address_only_its_plugin_knows_is_not_asked(hook, monkeypatch):
    """The host of a plugin's own URL is connected to; without any there is nothing to ask."""
    found = SimpleNamespace(host=None, port=hook.port, notify_url="http://localhost/x")
    monkeypatch.setattr("stepscope.alerts.delivery.apprise_channel.service", lambda _: found)
    assert probe(channel("json://x"), {}) == ""
    found.port = free_port()
    assert "refused" in probe(channel("json://x"), {})
    found.notify_url = ""
    assert probe(channel("json://x"), {}) == ""


class MailServer:
    """A mail server that keeps what it is asked, and knows one password."""

    def __init__(self, host, port, timeout, context=None):
        self.asked.append("ssl" if context else "plain")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.asked.append("quit")

    def starttls(self, context):
        self.asked.append("starttls checked" if context.check_hostname else "starttls")

    def login(self, user, password):
        self.asked.append(user)
        if password != "right":
            raise smtplib.SMTPAuthenticationError(535, b"no")


@pytest.mark.parametrize(
    ("mode", "verify", "user", "asked"),
    [
        ("ssl", True, "me", ["ssl", "me", "quit"]),
        ("starttls", True, "me", ["plain", "starttls checked", "me", "quit"]),
        ("starttls", False, "me", ["plain", "starttls", "me", "quit"]),
        ("insecure", True, "", ["plain", "quit"]),
    ],
)
def test_a_mail_server_is_asked_up_to_the_login(monkeypatch, mode, verify, user, asked):
    """It is talked to as a mail would be, with its encryption and its user; a wrong password is named."""
    MailServer.asked = []
    monkeypatch.setattr(probes.smtplib, "SMTP", MailServer)
    monkeypatch.setattr(probes.smtplib, "SMTP_SSL", MailServer)
    found = SimpleNamespace(smtp_host="mail.example", port=25, secure_mode=mode, verify_certificate=verify)
    found.user, found.password = user, "right"
    monkeypatch.setattr("stepscope.alerts.delivery.apprise_channel.service", lambda _: found)
    address = channel("mailtos://me@mail.example")
    assert probe(address, {}) == ""
    assert MailServer.asked == asked
    found.password = "wrong"
    assert probe(address, {}) == ("the mail server refused user or password (535)" if user else "")


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
