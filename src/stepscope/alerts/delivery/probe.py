"""Check at the start whether a channel would accept a message, without sending one."""

from __future__ import annotations

import http.client
import smtplib
import socket
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stepscope.alerts.delivery.channel import ALERTMANAGER, APPRISE, Channel
from stepscope.core.errors import StepscopeError
from stepscope.core.web_client import describe

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT = 10.0
"""Seconds for each step."""
_PLAIN = {"json", "xml", "form", "ntfy", "gotify", "mailto"}
"""Unencrypted schemes of apprise; the encrypted ones end in an s."""


def probe(channel: Channel, environ: Mapping[str, str]) -> str:
    """Return why a channel would refuse a message; "" if it would accept one. Nothing is sent."""
    try:
        address = channel.address(environ)
        channel.signing_secret(environ)
    except StepscopeError as error:
        return f"{error.cause}; {error.remedy}"
    try:
        if channel.kind == APPRISE:
            return _probe_apprise(address)
        return _probe_web(address.partition("+")[2] if channel.kind == ALERTMANAGER else address)
    except (OSError, ValueError, smtplib.SMTPException, http.client.HTTPException) as error:
        return describe(error)


def insecure(channel: Channel) -> str:
    """Return what is insecure about a working channel; "" if nothing is."""
    if channel.url.startswith(("http://", "alertmanager+http://")):
        return "it is not encrypted; use https://"
    if channel.kind == APPRISE and channel.scheme in _PLAIN:
        return f"it is not encrypted; use {channel.scheme}s://"
    if channel.kind == "webhook" and not channel.secret:
        return "it is not signed; give it a secret, so that the receiver can verify the sender"
    return ""


def _probe_apprise(address: str) -> str:
    from stepscope.alerts.delivery.apprise_channel import is_mail, service

    found = service(address)
    if found is None:
        return "apprise does not know this address; see https://github.com/caronc/apprise/wiki for its form"
    if is_mail(address):
        return _probe_mail(found)
    host = getattr(found, "host", None)
    url = getattr(found, "notify_url", None) or getattr(found, "webhook_url", None) or ""
    if not host or "." not in str(host):
        host = urlsplit(str(url)).hostname or host
    if not host or ("." not in str(host) and host != "localhost"):
        return ""  # only the plugin knows the address of this service
    port = getattr(found, "port", None) or (443 if getattr(found, "secure", True) or url.startswith("https") else 80)
    with socket.create_connection((str(host), int(port)), TIMEOUT):
        return ""


def _probe_mail(found: Any) -> str:
    """Connect to the mail server and log in, as apprise would."""
    context = ssl.create_default_context()
    if not found.verify_certificate:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if found.secure_mode == "ssl":
        server: smtplib.SMTP = smtplib.SMTP_SSL(found.smtp_host, found.port, timeout=TIMEOUT, context=context)
    else:
        server = smtplib.SMTP(found.smtp_host, found.port, timeout=TIMEOUT)
    with server:
        if found.secure_mode == "starttls":
            server.starttls(context=context)
        if found.user and found.password:
            try:
                server.login(found.user, found.password)
            except smtplib.SMTPAuthenticationError as error:
                return f"the mail server refused user or password ({error.smtp_code})"
    return ""


def _probe_web(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return "it is no web address"
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with socket.create_connection((parts.hostname, port), TIMEOUT) as connection:
        if parts.scheme == "https":
            ssl.create_default_context().wrap_socket(connection, server_hostname=parts.hostname).close()
    return ""
