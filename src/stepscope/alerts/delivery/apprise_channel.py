"""Notifications through apprise: mail, Slack, Discord, Teams, Telegram, PagerDuty, ntfy, Pushover and a hundred others.

Only the notifier and `stepscope alerts` import this: apprise never lives in the watcher or in a training.
"""

from __future__ import annotations

import logging
import re
import threading
import warnings
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import requests

from stepscope.alerts.delivery.channel import MAIL
from stepscope.alerts.delivery.mail import mail_of
from stepscope.alerts.delivery.message import inert, plain
from stepscope.alerts.delivery.webhook import Outcome
from stepscope.core.walls import wall
from stepscope.core.web_client import describe, wait_asked

with warnings.catch_warnings():  # apprise loads modules that this Python calls deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    import apprise
    import apprise.utils.pgp  # loaded by mail

if TYPE_CHECKING:
    from typing_extensions import Self

    from stepscope.alerts.delivery.message import Message

TYPES = {"critical": apprise.NotifyType.FAILURE, "warning": apprise.NotifyType.WARNING, "info": apprise.NotifyType.INFO}
MAX_WHY = 200
DETAIL = "Socket Exception: "
"""Start of the line in which apprise reports why a connection failed."""
_ANSWERS = threading.local()
"""Status and Retry-After of the last answer that this thread got from a server."""


class _Answering(requests.adapters.HTTPAdapter):
    """Remembers what servers answer; apprise only keeps whether it worked."""

    def send(self, request: Any, *arguments: Any, **named: Any) -> Any:
        """Send, and keep status and Retry-After."""
        answer = super().send(request, *arguments, **named)
        _ANSWERS.last = (answer.status_code, answer.headers.get("Retry-After"))
        return answer


def prepare_this_process() -> None:
    """Make requests follow no redirect and remember answers; only for the notifier process."""

    def no_redirect(self: Any, resp: Any) -> None:
        del self, resp

    requests.Session.get_redirect_target = no_redirect  # type: ignore[method-assign]
    initialise = requests.Session.__init__

    def begin(self: requests.Session) -> None:
        initialise(self)
        self.mount("https://", _Answering())
        self.mount("http://", _Answering())

    requests.Session.__init__ = begin  # type: ignore[method-assign]


def service(address: str) -> Any:
    """Return apprise's plugin for an address; None if the address is unknown or incomplete."""
    asset = apprise.AppriseAsset(
        app_id="Stepscope", app_desc="Stepscope alerts", app_url="", secure_logging=True, image_url_mask="", theme=""
    )
    with _Complaints():
        return apprise.Apprise.instantiate(address, asset=asset, suppress_exceptions=True)


def send(message: Message, address: str) -> Outcome:
    """Send a message to an apprise address and return the outcome; never raises for network errors."""
    kind = apprise.NotifyType.SUCCESS if message.resolved else TYPES.get(message.severity, apprise.NotifyType.WARNING)
    if is_mail(address):
        return tell(address, message.title(), mail_of(message), kind, apprise.NotifyFormat.HTML)
    return tell(address, inert(message.title()), inert(message.text()), kind)


def is_mail(address: str) -> bool:
    """Return whether an apprise address is a mail address."""
    return address.startswith(tuple(f"{scheme}://" for scheme in MAIL))


def tell(
    address: str,
    title: str,
    body: str,
    kind: apprise.NotifyType = apprise.NotifyType.WARNING,
    form: apprise.NotifyFormat = apprise.NotifyFormat.TEXT,
) -> Outcome:
    """Send a text to an apprise address, and return the outcome."""
    found = service(address)  # a new one: a plugin remembers its last recipients and waits between two messages
    if found is None:
        return Outcome(ok=False, why="apprise does not know this address")
    _ANSWERS.last = None
    ok = False
    errors: list[Exception] = []
    with _Complaints() as complaints, wall(errors.append):  # a hundred plugins may raise anything
        ok = bool(found.notify(body=body, title=title, notify_type=kind, body_format=form))
    if errors:
        return Outcome(ok=False, why=without_secrets(describe(errors[0]), address))
    if ok:
        return Outcome(ok=True)
    answer = getattr(_ANSWERS, "last", None)
    if answer is not None and answer[0] >= 300:
        return Outcome(ok=False, why=f"the server answered {answer[0]}", retry_after=wait_asked(answer[1]))
    return Outcome(ok=False, why=without_secrets(complaints.last() or "it was not accepted", address))


def without_secrets(text: str, address: str) -> str:
    """Return a text of apprise without any part of the address after its scheme."""
    shown = plain(text, MAX_WHY)
    body = address.partition("://")[2]
    pieces = set(re.split(r"[/?&@:]", body))
    pieces |= {part.partition("=")[2] for part in pieces}
    host = body.partition("?")[0].rpartition("@")[2].partition("/")[0].partition(":")[0]
    for piece in sorted({*pieces, *map(unquote, pieces)} - {host, ""}, key=len, reverse=True):
        if len(piece) > 3 and not piece.isdecimal():
            shown = shown.replace(piece, "***")
    return shown


class _Complaints(logging.Handler):
    """Collects apprise's warnings in this thread, and its debug lines that say why a mail failed."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._thread = threading.get_ident()
        self._texts: list[str] = []
        self._details: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        if record.thread != self._thread:
            return
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            self._texts.append(text)
        elif text.startswith(DETAIL):
            self._details.append(text.removeprefix(DETAIL))

    def last(self) -> str:
        """Return the last line, preferably one with a cause."""
        return ([*self._texts, *self._details] or [""])[-1]

    def __enter__(self) -> Self:
        logger = logging.getLogger("apprise")
        logger.addHandler(self)
        logger.propagate = False
        logger.setLevel(logging.DEBUG)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("apprise").removeHandler(self)
