"""Post an alert to a URL: a JSON document, signed as in Standard Webhooks; redirects are not followed.

The signature is `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`; libraries of that standard verify it.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import http.client
import json
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from stepscope.core.web_client import describe, wait_asked
from stepscope.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.alerts.delivery.message import Message

TIMEOUT = 15.0
"""Seconds for the connection, and for each part of the answer."""
PREFIX = "whsec_"


@dataclass(frozen=True)
class Outcome:
    """The outcome of sending a message."""

    ok: bool
    why: str = ""
    """What went wrong; contains no secret and nothing from the body of an answer."""
    retry_after: float | None = None
    """Seconds that the receiver asked for."""


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of the header `webhook-signature`."""
    digest = hmac.new(secret_bytes(secret), f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def secret_bytes(secret: str) -> bytes:
    """Return the key: the decoded base64 after `whsec_`, as in the standard, or any other text unchanged."""
    if secret.startswith(PREFIX):
        with contextlib.suppress(binascii.Error, ValueError):
            return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    return secret.encode()


def send(message: Message, url: str, secret: str = "", now: float | None = None) -> Outcome:
    """Send a message and return the outcome; never raises for network errors."""
    when = time.time() if now is None else now
    body = json.dumps(message.facts(when), separators=(",", ":"), default=str).encode()
    headers = {"webhook-id": message.id, "webhook-timestamp": str(int(when))}
    if secret:
        headers["webhook-signature"] = sign(secret, message.id, int(when), body)
    return post(url, body, headers)


def post(url: str, body: bytes, headers: Mapping[str, str], timeout: float = TIMEOUT) -> Outcome:
    """POST a JSON document; any status of 200 to 299 is success. The body of the answer is not read."""
    parts = urlsplit(url)
    try:
        connection = _connection(parts, timeout)
    except ValueError as error:
        return Outcome(ok=False, why=str(error))
    fixed = {"Content-Type": "application/json", "User-Agent": f"stepscope/{__version__}", "Connection": "close"}
    if parts.username:
        pair = f"{parts.username}:{parts.password or ''}".encode()
        fixed["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    try:
        target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", target, body, {**fixed, **headers})
        answer = connection.getresponse()
        return _outcome(answer.status, answer.headers)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Outcome(ok=False, why=describe(error))
    finally:
        connection.close()


def _connection(parts: Any, timeout: float) -> http.client.HTTPConnection:
    host, port = parts.hostname, parts.port
    if not host or parts.scheme not in {"http", "https"}:
        raise ValueError("it is no web address")
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=timeout)
    return http.client.HTTPSConnection(host, port, timeout=timeout, context=ssl.create_default_context())


def _outcome(status: int, headers: Any) -> Outcome:
    if 200 <= status < 300:
        return Outcome(ok=True)
    if 300 <= status < 400:
        return Outcome(ok=False, why=f"the server answered {status}, a redirect, which is not followed")
    return Outcome(ok=False, why=f"the server answered {status}", retry_after=wait_asked(headers.get("Retry-After")))
