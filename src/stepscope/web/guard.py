"""The gate before every route: judges requests by the rules, bounds them, and puts the same headers on every answer."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import msgspec

from stepscope.web.rules import ADMIN, Refusal, Rules

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOG = logging.getLogger("stepscope.web")
MOST_QUERY, MOST_PATH = 16_384, 2_048
"""Bytes of a query, and of a path."""
MOST_HEADERS, MOST_HEAD = 100, 32_768
"""Headers of a request, and their bytes."""
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
DATA_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)
OPEN_PATHS = ("/healthz",)
"""Beside the page itself, what is answered without a token."""


def is_data(path: str) -> bool:
    """Say whether a path leads to data; what does not is the page, which is the same for everybody."""
    return path.startswith(("/api/", "/metrics", "/openapi.json", "/figures"))


class Guard:
    """Stands before the application."""

    def __init__(self, app: App, rules: Rules) -> None:
        """Guard `app` by these rules."""
        self._app, self._rules = app, rules
        self.requests = 0
        self.refusals = 0
        self.last = time.monotonic()
        """When a request was last let pass."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a WebSocket: this server has none
            await send({"type": "websocket.close", "code": 1008})
            return
        self.requests += 1
        found = self._judged(scope)
        if isinstance(found, Refusal):
            self.refusals += 1
            await _answer(send, found.status, _error(found.text), path=scope["path"])
        elif found is not None:
            await _answer(send, 303, b"", [(b"location", scope["path"].encode()), (b"set-cookie", found)])
        else:
            await self._pass_on(scope, receive, send)

    def _judged(self, scope: Scope) -> Refusal | bytes | None:
        """Return why a request is refused, the cookie that its token is swapped for, or None if it may pass."""
        headers, rules = scope["headers"], self._rules
        local = str((scope.get("server") or ("", 0))[0])
        changes = scope["method"] not in {"GET", "HEAD"}
        page = not is_data(scope["path"])
        problem = (
            rules.misdirected(scope["raw_path"], headers, local)
            or _too_large(scope)
            or rules.foreign(headers, changes=changes, navigation=page and not changes)
        )
        if problem is not None:
            return problem
        if page and b"token=" in scope["query_string"]:
            return self._swapped(scope, time.monotonic())
        return None if page or scope["path"] in OPEN_PATHS else self._unallowed(scope, changes=changes)

    def _unallowed(self, scope: Scope, *, changes: bool) -> Refusal | None:
        allowed = self._rules.scope(scope["headers"], time.monotonic())
        if isinstance(allowed, Refusal):
            return allowed
        if changes and allowed != ADMIN:
            return Refusal(403, "cannot change anything: this token may only look; use the owner's address")
        return None

    def _swapped(self, scope: Scope, now: float) -> Refusal | bytes:
        """Swap the token in a URL for a cookie, and redirect to the URL without the token."""
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        found = self._rules.entry(token, now)
        if isinstance(found, Refusal):
            return found
        return f"{self._rules.cookie_name}={found}; HttpOnly; SameSite=Strict; Path=/".encode()

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = False
        self.last = time.monotonic()

        async def guarded(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                message = {**message, "headers": [*message["headers"], *_headers(scope["path"], message["headers"])]}
            await send(message)

        try:
            await self._app(scope, receive, guarded)
        except Exception:
            name = os.urandom(4).hex()
            LOG.exception("error %s: %s %s", name, scope["method"], scope["path"])
            if began:
                raise
            text = f"cannot answer this: an error of our own ({name}); the server's terminal says more"
            await _answer(send, 500, _error(text, name), path=scope["path"])


def _too_large(scope: Scope) -> Refusal | None:
    if len(scope["query_string"]) > MOST_QUERY or len(scope["raw_path"]) > MOST_PATH:
        return Refusal(414, "cannot answer this: its address is too long; ask for fewer names at a time")
    if (
        len(scope["headers"]) > MOST_HEADERS
        or sum(len(key) + len(value) for key, value in scope["headers"]) > MOST_HEAD
    ):
        return Refusal(431, "cannot answer this: its head is too long; send fewer headers")
    if "\x00" in scope["path"]:
        return Refusal(400, "cannot answer this: its path holds a zero byte; leave that out")
    return None


def _error(text: str, name: str | None = None) -> bytes:
    return msgspec.json.encode({"error": {"id": name or os.urandom(4).hex(), "text": text}})


def _headers(path: str, given: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    policy = DATA_POLICY if is_data(path) else PAGE_POLICY
    found = [*HEADERS, (b"content-security-policy", policy.encode())]
    if not any(key.lower() == b"cache-control" for key, _ in given):
        found.append((b"cache-control", b"no-store"))
    return found


async def _answer(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None, path: str = "/api/"
) -> None:
    """Send a whole answer of our own."""
    kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    more = [(b"www-authenticate", b'Bearer realm="stepscope"')] if status == 401 else []
    more += [(b"retry-after", b"60")] if status == 429 else []
    own = [*kind, *more, *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *_headers(path, own)]})
    await send({"type": "http.response.body", "body": body})
