"""Who is answered: the names of this server, the origins and sites of a request, tokens and what each may do.

No socket and no clock: headers in, a refusal or None out. A browser can be made to send anything to a loopback port, by
a page of somebody else or under another name (DNS rebinding), so every request is judged before any route sees it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.core.access import bracketed

if TYPE_CHECKING:
    from collections.abc import Sequence

    Headers = Sequence[tuple[bytes, bytes]]

READ, ADMIN = "read", "admin"
"""Scopes: to look at everything; to change the state of alerts too."""
GUESSES = 20
"""Wrong tokens in a minute, after which they are answered by 429."""
OWN_SITES = (b"none", b"same-origin")
WILDCARDS = ("0.0.0.0", "[::]")  # noqa: S104 - refused, not bound: a page elsewhere reaches loopback by them


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered."""

    status: int
    text: str


@dataclass
class Rules:
    """The names that this server answers to, and the token it asks for."""

    host: str
    """Address or name that it listens on."""
    token: str
    """Of the scope ADMIN; the one to READ is made of it."""
    port: int = 0
    names: set[str] = field(default_factory=set)
    """Further names, such as that of a proxy in front."""
    machine: str = field(default_factory=lambda: os.uname().nodename)
    start: str = field(default_factory=lambda: os.urandom(16).hex())
    """Of this start of the server: a cookie of an earlier one, which others may have seen since, is worth nothing."""
    _failures: list[float] = field(default_factory=list)

    def known_names(self, local: str) -> set[str]:
        """Return the names, in small letters; `local` is the address that the client reached."""
        found = {"localhost", "127.0.0.1", "[::1]", *(name.lower() for name in self.names)}
        if bracketed(self.host) not in {"", *WILDCARDS}:
            found.add(bracketed(self.host).lower())
        return found | {self.machine.lower(), bracketed(local).lower()}  # a page that knows these has no token

    def misdirected(self, target: bytes, headers: Headers, local: str) -> Refusal | None:
        """Refuse a request whose Host header does not name this server (DNS rebinding)."""
        if not target.startswith(b"/"):
            return Refusal(400, "cannot answer this: its target is not a path; ask for a path of this server")
        hosts = values(headers, b"host")
        name = host_name(hosts[0]) if len(hosts) == 1 else None
        if name is None or name not in self.known_names(local):
            text = "cannot answer this: the host that it names is not this server; use the address that was printed"
            return Refusal(421, text)
        return None

    def foreign(self, headers: Headers, *, changes: bool, navigation: bool) -> Refusal | None:
        """Refuse a request that a page of another origin sent (CSRF).

        Args:
            headers: of the request; its host is known to be ours.
            changes: whether the request would change something: a browser must then say where it comes from.
            navigation: whether it asks for the page itself, which a link elsewhere may lead to; it holds no data.
        """
        refusal = Refusal(403, "cannot answer this: it comes from another site; open the page of this server itself")
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
        """Return the rights of the sender, or why it has none. `now` is in seconds."""
        given = [*_bearer(headers), *_cookies(headers, self.cookie_name)]
        for word in given:
            for scope in (ADMIN, READ):
                if self._equal(word, self.token_for(scope)) or self._equal(word, self.cookie_for(scope)):
                    return scope
        if given:
            self._failures = [*(moment for moment in self._failures if moment > now - 60), now][-GUESSES - 1 :]
            if len(self._failures) > GUESSES:
                return Refusal(429, "cannot answer this: too many wrong tokens; wait a minute")
        return Refusal(401, "cannot answer this: a token is needed; open the address that `stepscope serve` printed")

    def entry(self, token: str, now: float) -> str | Refusal:
        """Return the cookie that a token in an address is swapped for."""
        found = self.scope([(b"authorization", b"Bearer " + token.encode("utf-8", "replace"))], now)
        return found if isinstance(found, Refusal) else self.cookie_for(found)

    def token_for(self, scope: str) -> str:
        """Return the token of a scope; that to read cannot be turned into the other."""
        return self.token if scope == ADMIN else self._derived("token to read")

    def cookie_for(self, scope: str) -> str:
        """Return what the cookie of a scope holds: not the token, for a browser keeps cookies in a file."""
        return self._derived(f"cookie to {scope} on port {self.port} since {self.start}")

    @property
    def cookie_name(self) -> str:
        """Cookies do not tell ports apart, so the name does."""
        return f"stepscope-{self.port}"

    def _derived(self, purpose: str) -> str:
        return hmac.new(self.token.encode(), purpose.encode(), hashlib.sha256).hexdigest()[:48]

    @staticmethod
    def _equal(given: bytes, expected: str) -> bool:
        return hmac.compare_digest(given, expected.encode())


def values(headers: Headers, name: bytes) -> list[bytes]:
    """Return every value of a header; names are in small letters."""
    return [value for key, value in headers if key == name]


def host_name(host: bytes) -> str | None:
    """Return the name in a `Host` header in small letters; None if it has not the form of one."""
    text = host.decode("latin-1").lower()
    name, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        return text
    return name if port.isdecimal() and len(port) <= 5 else None


def _bearer(headers: Headers) -> list[bytes]:
    found = []
    for value in values(headers, b"authorization"):
        scheme, _, given = value.partition(b" ")
        if scheme.lower() == b"bearer":
            found.append(given.strip())
    return found


def _cookies(headers: Headers, name: str) -> list[bytes]:
    pairs = [pair.strip().partition(b"=") for value in values(headers, b"cookie") for pair in value.split(b";")[:64]]
    return [value for key, _, value in pairs if key == name.encode()]
