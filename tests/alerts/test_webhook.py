"""The signed webhook, against real servers on this machine."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
import time

import pytest

from stepscope.alerts.delivery import webhook
from stepscope.alerts.delivery.message import Message, MessageSubject
from stepscope.alerts.delivery.webhook import post, send, sign
from stepscope.core.web_client import describe, wait_asked
from tests.alerts.servers import Hook, alert

MESSAGE = Message("alert_1", MessageSubject("r1", "mnist"), [alert()])


@pytest.fixture
def hook(request):
    """A server that behaves as the test says; it answers 200 if nothing is said."""
    made = Hook(*([request.param] if hasattr(request, "param") else []))
    yield made
    made.close()


def test_a_receiver_can_tell_who_speaks(hook):
    """The signature is that of the Standard Webhooks: over id, time and body, with the shared secret."""
    assert send(MESSAGE, f"{hook.url}/x?a=1", "s3cret").ok
    [request] = hook.requests
    headers = {name.lower(): value for name, value in request["headers"].items()}
    assert headers["webhook-id"] == "alert_1"
    signed = f"alert_1.{headers['webhook-timestamp']}.".encode() + request["body"]
    digest = base64.b64encode(hmac.new(b"s3cret", signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{digest}"
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 600
    assert json.loads(request["body"])["alerts"][0]["rule"] == "loss_spike"
    assert request["path"] == "/x?a=1"


def test_a_secret_of_the_standard_is_base64():
    """The example of the specification gives its signature."""
    body = b'{"test": 2432232314}'
    found = sign("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("hook", "why"),
    [
        (500, "the server answered 500"),
        (404, "the server answered 404"),
        ((302, {"Location": "http://169.254.169.254/"}), "a redirect, which is not followed"),
        ("reset", "the connection broke off"),
    ],
    indirect=["hook"],
)
def test_what_a_server_does_wrong_is_a_short_cause(hook, why):
    """No redirect is followed and no answer's body repeated; one request was made."""
    outcome = send(MESSAGE, hook.url)
    assert not outcome.ok
    assert why in outcome.why
    assert len(hook.requests) == 1


@pytest.mark.parametrize("hook", ["hang"], indirect=True)
def test_a_server_that_hangs_costs_a_timeout(hook):
    """And no more."""
    outcome = post(hook.url, b"{}", {}, timeout=0.3)
    assert (outcome.ok, outcome.why) == (False, "no answer in time")


@pytest.mark.parametrize("hook", [(429, {"Retry-After": "17"})], indirect=True)
def test_retry_after_is_read(hook):
    """As seconds here."""
    assert send(MESSAGE, hook.url).retry_after == 17.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("120", 120.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 8.0), ("soon", None), ("", None), (None, None), ("-5", None)],
)
def test_retry_after_is_a_number_or_a_date(value, seconds):
    """Anything else is nothing."""
    assert wait_asked(value, now=1445412472.0) == seconds


@pytest.mark.parametrize("url", ["ftp://x.y", "https://", "file:///etc/passwd", "gopher://x.y", "http://x.y:99999"])
def test_other_schemes_are_no_web_addresses(url):
    """They fail without a connection."""
    assert not send(MESSAGE, url).ok


def test_nobody_listens():
    """A closed port is a cause, too."""
    assert "refused" in post("http://127.0.0.1:1", b"", {}).why.lower()
    assert describe(OSError()) == "OSError"


@pytest.mark.parametrize("url", ["ftp://host/x", "https://", "http://host:none/", "nothing"])
def test_what_is_no_web_address_is_refused_without_a_connection(url):
    """A URL of another scheme, without a host or with an invalid port is a failed delivery with its cause."""
    outcome = post(url, b"{}", {})
    assert not outcome.ok
    assert outcome.why


def test_a_user_in_the_address_becomes_basic_authentication(hook):
    """Name and password of the URL go into the header, not into the request line."""
    assert post(hook.url.replace("http://", "http://me:secret@"), b"{}", {}).ok
    [request] = hook.requests
    headers = {name.lower(): value for name, value in request["headers"].items()}
    assert headers["authorization"] == f"Basic {base64.b64encode(b'me:secret').decode()}"
    assert "secret" not in request["path"]


def test_a_broken_standard_secret_still_signs():
    """A `whsec_` secret that is not base64 is used as text, so that receiver and sender can agree on it."""
    assert webhook.secret_bytes("whsec_not base64!") == b"whsec_not base64!"


def test_a_date_without_a_zone_is_utc():
    """Retry-After as a date without a time zone counts from UTC."""
    assert wait_asked("Wed, 21 Oct 2026 07:28:30", now=1792567680.0) == 30.0


def test_an_untrusted_certificate_is_named():
    """The cause of a failed TLS handshake is what the check of the certificate reported."""
    error = ssl.SSLCertVerificationError()
    error.verify_message = "self-signed certificate"
    assert describe(error) == "the certificate is not trusted: self-signed certificate"
    assert describe(ValueError()) == "ValueError"


def test_a_broken_connection_is_described_in_words():
    """People read what happened, and not the name of an exception."""
    assert describe(ConnectionRefusedError(111, "x")) == "the connection was refused: nothing listens there"
    assert describe(socket.gaierror(-2, "x")) == "no host of that name was found"
    assert describe(BrokenPipeError()) == "the connection broke off"
