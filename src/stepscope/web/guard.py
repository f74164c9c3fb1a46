"""The guard in front of every route: applies the access policy and size limits, and sets security headers."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from stepscope.web.access_policy import ADMIN, AccessPolicy, Refusal
from stepscope.web.failures import error_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOG = logging.getLogger("stepscope.web")
MAX_QUERY, MAX_PATH = 16_384, 2_048
"""Bytes of a query, and of a path."""
MAX_HEADERS, MAX_HEAD = 100, 32_768
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
"""Data that needs no token."""


def is_data(path: str) -> bool:
    """Return whether a path leads to data; all other paths lead to the page, which is public."""
    return path.startswith(("/api/", "/metrics", "/openapi.json", "/figures"))


@dataclass
class Traffic:
    """Requests so far."""

    requests: int = 0
    refusals: int = 0
    last: float = field(default_factory=time.monotonic)
    """Time of the last request that was let through, on the monotonic clock."""


class RequestGuard:
    """An ASGI application that checks each request before it passes it on."""

    def __init__(self, app: App, policy: AccessPolicy, traffic: Traffic | None = None) -> None:
        """Guard `app` with a policy; requests are counted in `traffic`."""
        self._app, self._policy = app, policy
        self._traffic = traffic or Traffic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no WebSockets here
            await send({"type": "websocket.close", "code": 1008})
            return
        self._traffic.requests += 1
        verdict = self._check(scope)
        if isinstance(verdict, Refusal):
            self._traffic.refusals += 1
            await _answer(send, verdict.status, error_body(verdict.text), path=scope["path"])
        elif verdict is not None:
            await _answer(send, 303, b"", [(b"location", scope["path"].encode()), (b"set-cookie", verdict)])
        else:
            await self._pass_on(scope, receive, send)

    def _check(self, scope: Scope) -> Refusal | bytes | None:
        """Return a refusal, the cookie to set in exchange for a token in the address, or None to let it pass."""
        headers, policy = scope["headers"], self._policy
        local = str((scope.get("server") or ("", 0))[0])
        changes = scope["method"] not in {"GET", "HEAD"}
        page = not is_data(scope["path"])
        problem = (
            policy.misdirected(scope["raw_path"], headers, local)
            or _too_large(scope)
            or policy.foreign(headers, changes=changes, navigation=page and not changes)
        )
        if problem is not None:
            return problem
        if page and b"token=" in scope["query_string"]:
            return self._cookie(scope)
        if page or scope["path"] in OPEN_PATHS:
            return None
        allowed = policy.scope(headers, time.monotonic())
        if isinstance(allowed, Refusal):
            return allowed
        if changes and allowed != ADMIN:
            return Refusal(403, "cannot change this alert: this token may only read; use the address of the owner")
        return None

    def _cookie(self, scope: Scope) -> Refusal | bytes:
        """Exchange the token in an address for a cookie; the redirect drops the token from the address."""
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        cookie = self._policy.entry(token, time.monotonic())
        if isinstance(cookie, Refusal):
            return cookie
        return f"{self._policy.cookie_name}={cookie}; HttpOnly; SameSite=Strict; Path=/".encode()

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = False
        self._traffic.last = time.monotonic()

        async def guarded(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                message = {**message, "headers": [*message["headers"], *_headers(scope["path"], message["headers"])]}
            await send(message)

        try:
            await self._app(scope, receive, guarded)
        except Exception:
            identifier = os.urandom(4).hex()
            LOG.exception("error %s: %s %s", identifier, scope["method"], scope["path"])
            if began:
                raise
            text = f"cannot answer this request: internal error {identifier}; see the output of the server"
            await _answer(send, 500, error_body(text, identifier), path=scope["path"])


def _too_large(scope: Scope) -> Refusal | None:
    if len(scope["query_string"]) > MAX_QUERY or len(scope["raw_path"]) > MAX_PATH:
        return Refusal(414, "cannot answer this request: its address is too long; ask for fewer names at a time")
    if len(scope["headers"]) > MAX_HEADERS or sum(len(key) + len(value) for key, value in scope["headers"]) > MAX_HEAD:
        return Refusal(431, "cannot answer this request: its head is too long; send fewer headers")
    if "\x00" in scope["path"]:
        return Refusal(400, "cannot answer this request: its path contains a zero byte; remove it")
    return None


def _headers(path: str, given: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    policy = DATA_POLICY if is_data(path) else PAGE_POLICY
    headers = [*HEADERS, (b"content-security-policy", policy.encode())]
    if not any(key.lower() == b"cache-control" for key, _ in given):
        headers.append((b"cache-control", b"no-store"))
    return headers


async def _answer(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None, path: str = "/api/"
) -> None:
    kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    more = [(b"www-authenticate", b'Bearer realm="stepscope"')] if status == 401 else []
    more += [(b"retry-after", b"60")] if status == 429 else []
    own = [*kind, *more, *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *_headers(path, own)]})
    await send({"type": "http.response.body", "body": body})
