"""Answer or refuse one request for the metrics page. No socket and no clock: bytes in, a reply out.

Requests that another site could make a browser send are refused: a foreign `Host` (DNS rebinding), a foreign `Origin`,
an unsupported method or body.
"""

from __future__ import annotations

import os
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.access import bracketed, host_name

if TYPE_CHECKING:
    from collections.abc import Callable

HEADERS = 64
"""Maximum lines of a request."""
GUARDS = (
    "X-Content-Type-Options: nosniff\r\n"
    "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cache-Control: no-store\r\n"
)
PLAIN = "text/plain; charset=utf-8"
GUESSES = 20
"""Wrong tokens per minute after which the answer is 429."""


class Reply(NamedTuple):
    """A response."""

    status: int
    kind: str
    """Content type."""
    body: bytes
    without_body: bool = False
    """Whether to send only the head, for HEAD."""

    def encode(self) -> bytes:
        """Return the bytes of the response; the connection is closed after it."""
        more = 'WWW-Authenticate: Bearer realm="stepscope"\r\n' if self.status == 401 else ""
        more += "Allow: GET, HEAD\r\n" if self.status == 405 else ""
        head = (
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}\r\nContent-Type: {self.kind}\r\n"
            f"Content-Length: {len(self.body)}\r\nConnection: close\r\n{GUARDS}{more}\r\n"
        ).encode()
        return head if self.without_body else head + self.body


class Rules:
    """Who may read: the host names of this endpoint, and its token, if it has one."""

    def __init__(self, host: str, token: str | None = None, machine: str | None = None) -> None:
        """Answer to localhost, to the bound address, and with a token to the machine's own name too."""
        self._token = token
        self._names = {"localhost", "127.0.0.1", "[::1]"}
        if host not in {"", "0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
            self._names.add(bracketed(host).lower())
        if token:
            self._names.add((machine or os.uname().nodename).lower())
        self._failures: list[float] = []

    def knows(self, host: str, local: str) -> bool:
        """Return whether a `Host` header names this endpoint; `local` is the address that the client reached."""
        name = host_name(host)
        if name in {None, "0.0.0.0", "[::]"}:  # noqa: S104 - refused, not bound: other sites can reach loopback by it
            return False
        return name in self._names or (bool(self._token) and name == bracketed(local))

    def refuses(self, authorization: str, now: float) -> Reply | None:
        """Return the refusal of a request without the right token, or None. `now` is in seconds."""
        if not self._token:
            return None
        import hmac

        scheme, _, given = authorization.partition(" ")
        expected = self._token.encode()
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("utf-8", "replace"), expected):
            return None
        self._failures = [*(moment for moment in self._failures if moment > now - 60), now][-GUESSES - 1 :]
        return refusal(429 if len(self._failures) > GUESSES else 401, "a token is needed")


def refusal(status: int, why: str) -> Reply:
    """Return a response that explains why the request was refused."""
    return Reply(status, PLAIN, f"{why}\n".encode())


def answer(head: bytes, rules: Rules, local: str, metrics: Callable[[str], Reply], now: float) -> Reply:
    """Return the reply to a request with this request line and headers.

    `local` is the address that the client reached, `metrics` returns the page for an `Accept` header, and `now` is in
    seconds.
    """
    try:
        request = _parse(head)
    except ValueError as error:
        return refusal(400, str(error))
    if request.version not in {"HTTP/1.0", "HTTP/1.1"}:
        return refusal(505, "HTTP/1.1 is spoken here")
    problem = _misdirected(request, rules, local) or rules.refuses(request.header("authorization"), now)
    if problem is not None:
        return problem
    if request.method not in {"GET", "HEAD"}:
        return refusal(405, "only GET and HEAD are answered")
    if request.header("content-length", "0").strip() != "0" or "transfer-encoding" in request.headers:
        return refusal(400, "a request has no body here")
    path = request.path.partition("?")[0]
    if path == "/metrics":
        reply = metrics(request.header("accept"))
    elif path == "/healthz":
        reply = Reply(200, PLAIN, b"ok\n")
    else:
        reply = refusal(404, "there is /metrics and /healthz")
    return reply._replace(without_body=request.method == "HEAD")


class _Request(NamedTuple):
    """A request line and its headers, with all values of a repeated header."""

    method: str
    path: str
    version: str
    headers: dict[str, list[str]]

    def header(self, name: str, absent: str = "") -> str:
        """Return a header; several of one name, joined as HTTP does."""
        return ", ".join(self.headers.get(name, [absent]))


def _parse(head: bytes) -> _Request:
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not first.isprintable() or not parts[1].startswith("/"):
        raise ValueError("the request line is not understood")
    if len(lines) > HEADERS:
        raise ValueError("the request has too many headers")
    headers: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or "\n" in line or "\r" in line or "\0" in line:
            raise ValueError("a header is not understood")
        headers.setdefault(name.lower(), []).append(value.strip())
    return _Request(parts[0], parts[1], parts[2], headers)


def _misdirected(request: _Request, rules: Rules, local: str) -> Reply | None:
    """Refuse a request meant for another host, or sent by another host's page."""
    hosts = request.headers.get("host", [])
    if len(hosts) != 1 or not rules.knows(hosts[0], local):
        return refusal(421, "this host is not served here")
    origin = request.headers.get("origin")
    if origin is not None and origin != [f"http://{hosts[0]}"]:
        return refusal(403, "pages of other origins are not answered")
    if request.header("sec-fetch-site", "none") not in {"none", "same-origin"}:
        return refusal(403, "pages of other sites are not answered")
    return None
