"""A client of one web server, with a deadline on every call; redirects are not followed.

Credentials come from the address, from the caller, or from netrc. They are in no error.
"""

from __future__ import annotations

import base64
import http.client
import netrc
import os
import ssl
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from stepscope.core.terminal_text import plain
from stepscope.core.web_client import describe, wait_asked
from stepscope.exporters.sinks.deadline import Deadline
from stepscope.exporters.sinks.sink import (
    CALL_SECONDS,
    SinkDeniesError,
    SinkDownError,
    SinkRefusesError,
    SinkSlowError,
)
from stepscope.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from email.message import Message
    from urllib.parse import SplitResult

MAX_ANSWER = 4 << 20
"""Bytes of an answer that are read."""
SHOWN = 200
"""Characters of an answer that a message quotes."""
AGAIN = frozenset((408, 425, 429))
"""Answers below 500 after which the same request may succeed."""
OTHERS = frozenset((401, 403, 404, 405, 407, 410, 501, 505))
"""Answers that say nothing about the rows: who we are, or where we send them, is wrong."""


class Answer(NamedTuple):
    """The answer of a server."""

    status: int
    headers: Message
    """Found by names in any case."""
    body: bytes
    is_second: bool = False
    """Whether the request was made twice, because its connection was lost: the server may have handled both."""


class HttpClient:
    """Requests to one server over a connection that is kept. For one thread at a time."""

    def __init__(
        self,
        target: SplitResult,
        environ: Mapping[str, str],
        headers: Mapping[str, str] | None = None,
        ca_file: str = "",
        *,
        verify: bool = True,
        max_answer: int = MAX_ANSWER,
    ) -> None:
        """Connect to nothing yet; `headers` go with every request, `ca_file` holds further trusted certificates.

        `max_answer` is the number of bytes of an answer that are read.
        """
        self._target, self._environ = target, environ
        self._host = target.hostname or ""
        self._headers = {"User-Agent": f"stepscope/{__version__}", **(headers or {})}
        if "authorization" not in {name.lower() for name in self._headers}:
            self._headers |= _credentials(target, environ)
        self._ca_file, self._verify, self._max_answer = ca_file, verify, max_answer
        self._connection: http.client.HTTPConnection | None = None
        self._deadline = Deadline()
        self._site = ""
        """What comes before the path of a request: its server, if a proxy of plain requests must know it."""
        self._to_proxy: dict[str, str] = {}
        """Headers for such a proxy."""

    def post(self, path: str, body: bytes, headers: Mapping[str, str], seconds: float = CALL_SECONDS) -> Answer:
        """POST to a path below the server's address, and return the answer to a request that was taken (2xx)."""
        return self.request("POST", path, body, headers, seconds)

    def get(self, path: str, seconds: float = CALL_SECONDS) -> Answer:
        """GET a path below the server's address, and return the answer to a request that was taken (2xx)."""
        return self.request("GET", path, None, {}, seconds)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        seconds: float = CALL_SECONDS,
        *,
        judged: bool = True,
    ) -> Answer:
        """Make a request and return its answer.

        Raises SinkDownError if there is none in time, and what `judge` raises, unless `judged` is False.
        """
        target = quote(self._target.path.rstrip("/") + path, safe="/%:@!$&'()*+,;=~?[]")
        given = {**self._headers, **headers}
        was_idle = self._connection is not None
        try:
            try:
                answer = self._exchange(method, target, body, given, seconds)
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                if not was_idle:
                    raise
                # A server may close an idle connection at any time, without having seen the request.
                answer = self._exchange(method, target, body, given, seconds)._replace(is_second=True)
        except (OSError, http.client.HTTPException) as error:
            raise (SinkSlowError if isinstance(error, TimeoutError) else SinkDownError)(describe(error)) from None
        except ValueError:  # its text quotes the header, which may be a secret
            raise SinkDeniesError(
                "its address, or a secret for it, holds a character that no request may have"
            ) from None
        if judged:
            judge(answer, self.scrubbed)
        return answer

    def _exchange(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str], seconds: float
    ) -> Answer:
        connection = self._connection or self._connect(seconds)
        self._connection = None  # only a finished exchange leaves a connection that can be used again
        self._deadline.begin(connection, seconds)
        try:
            connection.timeout = seconds
            if connection.sock is not None:
                connection.sock.settimeout(seconds)
            connection.request(method, self._site + target, body, {**headers, **self._to_proxy})
            with connection.getresponse() as found:
                answer = Answer(found.status, found.headers, found.read(self._max_answer))
                is_whole = not found.length
                is_kept = is_whole and found.isclosed() and not found.will_close
            if self._deadline.is_over or (not is_whole and len(answer.body) < self._max_answer):
                raise http.client.IncompleteRead(answer.body)
            if is_kept:
                self._connection = connection
        except (OSError, http.client.HTTPException) as error:
            if self._deadline.is_over:
                raise TimeoutError from error
            raise
        finally:
            self._deadline.end()
            if self._connection is None:
                connection.close()
        return answer

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        scheme, host, port = self._target.scheme, self._host, self._target.port
        if not host or scheme not in {"http", "https"}:
            raise ValueError("it is no web address")
        proxy = _proxy(scheme, host, self._environ)
        at = (proxy.hostname or "", proxy.port or 8080) if proxy else (host, port)
        if scheme == "http":
            connection = http.client.HTTPConnection(*at, timeout=seconds)
        else:
            connection = http.client.HTTPSConnection(*at, timeout=seconds, context=self._context())
        self._site, self._to_proxy = "", {}
        if proxy and scheme == "https":
            connection.set_tunnel(host, port or 443, _proxy_header(proxy))
        elif proxy:  # plain requests go through a proxy as they are, with the whole address
            self._site, self._to_proxy = f"http://{self._target.netloc.rpartition('@')[2]}", _proxy_header(proxy)
        return connection

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self._ca_file:
            try:
                context.load_verify_locations(self._ca_file)
            except (OSError, ssl.SSLError) as error:
                raise SinkDeniesError(
                    f"the certificates in {self._ca_file} cannot be read: {describe(error)}"
                ) from None
        if not self._verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    def scrubbed(self, text: str) -> str:
        """Return a text of the server for people: one line, without our credentials."""
        for name, value in self._headers.items():
            if name.lower() != "user-agent":
                for part in (value, value.partition(" ")[2], _password(value)):
                    text = text.replace(part, "[redacted]") if len(part) > 3 else text
        if self._target.password:
            text = text.replace(unquote(self._target.password), "[redacted]")
        return one_line(text)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def one_line(text: str) -> str:
    """Return a text of a server for people: short, and on one line."""
    return plain(" ".join(text.split()))[:SHOWN]


def judge(answer: Answer, scrubbed: Callable[[str], str] = one_line) -> None:
    """Raise the error that an answer means; return for 200 to 299."""
    status = answer.status
    if 200 <= status < 300:
        return
    text = scrubbed(answer.body[:2000].decode("utf-8", "replace"))
    why = f"the server answered {status}" + (f": {text}" if text and not text.startswith("<") else "")
    if 300 <= status < 400:
        raise SinkDeniesError(f"the server answered {status}, a redirect, which is not followed")
    if status in OTHERS:
        raise SinkDeniesError(why)
    if status >= 500 or status in AGAIN:
        raise SinkDownError(why, wait_asked(answer.headers.get("Retry-After")))
    raise SinkRefusesError(why)


def is_page(answer: Answer) -> bool:
    """Return whether an answer is a web page, such as the login page of a proxy that answers in a server's place."""
    kind = (answer.headers.get("Content-Type") or "").lower()
    return "html" in kind or answer.body.lstrip()[:15].lower().startswith((b"<!doctype", b"<html"))


def _credentials(target: SplitResult, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the header with the user and password of an address, else those of its host in netrc."""
    if target.username:
        return _basic(target)
    path = environ.get("NETRC") or os.path.join(environ.get("HOME") or str(Path.home()), ".netrc")
    try:
        found = netrc.netrc(path).authenticators(target.hostname or "") if os.path.isfile(path) else None
    except (OSError, netrc.NetrcParseError):
        return {}  # like curl: a file that cannot be used is as good as none; the server's answer shows it
    return _header(found[0] or "", found[2] or "") if found else {}


def _basic(parts: SplitResult) -> dict[str, str]:
    return _header(unquote(parts.username), unquote(parts.password or "")) if parts.username else {}


def _proxy_header(proxy: SplitResult) -> dict[str, str]:
    return {f"Proxy-{name}": value for name, value in _basic(proxy).items()}


def _header(user: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


def _password(header: str) -> str:
    """Return the password in a header of basic authentication; empty in others."""
    kind, _, text = header.partition(" ")
    try:
        return base64.b64decode(text, validate=True).decode().partition(":")[2] if kind == "Basic" else ""
    except ValueError:
        return ""


def _proxy(scheme: str, host: str, environ: Mapping[str, str]) -> SplitResult | None:
    """Return the proxy that the environment names for a host."""
    proxies = {
        name.lower().removesuffix("_proxy"): value
        for name, value in sorted(environ.items())  # the lower-case spelling wins
        if name.lower().endswith("_proxy") and value
    }
    url = proxies.get(scheme) or proxies.get("all")
    bypass = getattr(urllib.request, "proxy_bypass_environment")  # noqa: B009 - not in the type stubs
    if not url or bypass(host, proxies):
        return None
    return urlsplit(url if "://" in url else f"http://{url}")
