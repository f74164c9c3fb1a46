"""What our clients of web servers share: how long a server asks to wait, and errors in words without addresses."""

from __future__ import annotations

import socket
import ssl
import time
from datetime import timezone
from email.utils import parsedate_to_datetime


def wait_asked(value: str | None, now: float | None = None) -> float | None:
    """Return the seconds that a Retry-After header asks for, given as a number or as a date."""
    if not value:
        return None
    text = value.strip()
    if text.isdecimal() and text.isascii():
        return float(text[:9])
    try:
        moment = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    date = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    return max(0.0, date.timestamp() - (time.time() if now is None else now))


def describe(error: BaseException) -> str:
    """Return what went wrong in a few words, without the address."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused: nothing listens there"
    if isinstance(error, socket.gaierror):
        return "no host of that name was found"
    if isinstance(error, ConnectionError):
        return "the connection broke off"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{type(error).__name__}: {text}"[:200] if text else type(error).__name__
