"""Decide which requests are answered: by host name, origin and token.

Pure functions of headers, without socket or clock. Any web page can make a browser send requests to a loopback port,
also under another host name (DNS rebinding), so every request is checked before a route sees it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.core.access import bracketed, host_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    Headers = Sequence[tuple[bytes, bytes]]

READ, ADMIN = "read", "admin"
"""Scopes: READ sees everything; ADMIN may also change the state of alerts."""
GUESSES = 20
"""Wrong tokens per minute, after which the response is 429."""
OWN_SITES = (b"none", b"same-origin")
WILDCARDS = ("0.0.0.0", "[::]")  # noqa: S104 - compared, not bound: other sites can reach loopback through them


@dataclass(frozen=True)
class Refusal:
    """The reason for refusing a request."""

    status: int
    text: str


@dataclass
class AccessPolicy:
    """The host names of this server, and the token that it requires."""

    host: str
    """Address or name that the server listens on."""
    token: str
    """The token of the scope ADMIN; the token of READ is derived from it."""
    port: int = 0
    machine: str = field(default_factory=lambda: os.uname().nodename)
    start: str = field(default_factory=lambda: os.urandom(16).hex())
    """Random for each start of the server, so that cookies of an earlier start are invalid."""
    _failures: list[float] = field(default_factory=list)

    def known_names(self, local: str) -> set[str]:
        """Return the host names in lower case; `local` is the address that the client connected to."""
        names = {"localhost", "127.0.0.1", "[::1]"}
        if bracketed(self.host) not in {"", *WILDCARDS}:
            names.add(bracketed(self.host).lower())
        return names | {self.machine.lower(), bracketed(local).lower()}  # safe: a page that knows them has no token

    def misdirected(self, target: bytes, headers: Headers, local: str) -> Refusal | None:
        """Refuse a request whose host is not this server."""
        if not target.startswith(b"/"):
            return Refusal(400, "cannot answer this request: its target is not a path; request a path of this server")
        hosts = values(headers, b"host")
        name = host_name(hosts[0].decode("latin-1")) if len(hosts) == 1 else None
        if name is None or name not in self.known_names(local):
            text = "cannot answer this request: it names another host; use the address that `stepscope serve` printed"
            return Refusal(421, text)
        return None

    def foreign(self, headers: Headers, *, changes: bool, navigation: bool) -> Refusal | None:
        """Refuse a request that a page of another origin sent; its host was checked before.

        A browser must send its origin with a request that `changes` something. A `navigation` loads the page itself,
        which holds no data, so links from other sites may lead to it.
        """
        refusal = Refusal(
            403, "cannot answer this request: it comes from another site; open the page of this server instead"
        )
        origins, sites = values(headers, b"origin"), values(headers, b"sec-fetch-site")
        own = b"://" + values(headers, b"host")[0].lower()
        if origins and (len(origins) > 1 or origins[0].lower() not in {b"http" + own, b"https" + own}):
            return refusal
        if any(site not in OWN_SITES for site in sites):
            arrives = navigation and values(headers, b"sec-fetch-mode") == [b"navigate"] and not origins
            return None if arrives and values(headers, b"sec-fetch-dest") == [b"document"] else refusal
        if changes and not origins and b"same-origin" not in sites and not values(headers, b"authorization"):
            return refusal
        return None

    def scope(self, headers: Headers, now: float) -> str | Refusal:
        """Return the scope of the sender, or the refusal. `now` is in seconds."""
        given = [*_bearer(headers), *_cookies(headers, self.cookie_name)]
        for word in given:
            for scope in (ADMIN, READ):
                known = (self.token_for(scope), self.cookie_for(scope))
                if any(hmac.compare_digest(word, one.encode()) for one in known):
                    return scope
        if given:
            self._failures = [*(time for time in self._failures if time > now - 60), now][-GUESSES - 1 :]
            if len(self._failures) > GUESSES:
                return Refusal(429, "cannot answer this request: too many wrong tokens; wait a minute")
        return Refusal(
            401, "cannot answer this request: a token is needed; open the address that `stepscope serve` printed"
        )

    def entry(self, token: str, now: float) -> str | Refusal:
        """Return the cookie for a token from an address."""
        scope = self.scope([(b"authorization", b"Bearer " + token.encode("utf-8", "replace"))], now)
        return scope if isinstance(scope, Refusal) else self.cookie_for(scope)

    def token_for(self, scope: str) -> str:
        """Return the token of a scope; the ADMIN token cannot be computed from the READ token."""
        return self.token if scope == ADMIN else self._derived("token to read")

    def cookie_for(self, scope: str) -> str:
        """Return the cookie of a scope: not the token itself, because browsers store cookies in files."""
        return self._derived(f"cookie to {scope} on port {self.port} since {self.start}")

    @property
    def cookie_name(self) -> str:
        """Name of the cookie; it contains the port because browsers send cookies to all ports of a host."""
        return f"stepscope-{self.port}"

    def _derived(self, purpose: str) -> str:
        return hmac.new(self.token.encode(), purpose.encode(), hashlib.sha256).hexdigest()[:48]


def values(headers: Headers, name: bytes) -> list[bytes]:
    """Return all values of a header; its name is in lower case."""
    return [value for key, value in headers if key == name]


def _bearer(headers: Headers) -> list[bytes]:
    parts = [value.partition(b" ") for value in values(headers, b"authorization")]
    return [token.strip() for scheme, _, token in parts if scheme.lower() == b"bearer"]


def _cookies(headers: Headers, name: str) -> list[bytes]:
    pairs = [pair.strip().partition(b"=") for value in values(headers, b"cookie") for pair in value.split(b";")[:64]]
    return [value for key, _, value in pairs if key == name.encode()]
