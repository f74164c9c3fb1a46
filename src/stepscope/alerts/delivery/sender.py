"""Sends one message over one channel of any kind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stepscope.alerts.delivery.channel import ALERTMANAGER, WEBHOOK, Channel
from stepscope.alerts.delivery.webhook import Outcome
from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.alerts.delivery.message import Message


def deliver(channel: Channel, message: Message, environ: Mapping[str, str] = os.environ) -> Outcome:
    """Send a message and return the outcome. Secrets are read now, because they may change during a run."""
    try:
        address, secret = channel.address(environ), channel.signing_secret(environ)
    except StepscopeError as error:
        return Outcome(ok=False, why=f"{error.cause}; {error.remedy}")
    if channel.kind == WEBHOOK:
        from stepscope.alerts.delivery import webhook

        return webhook.send(message, address, secret)
    if channel.kind == ALERTMANAGER:
        from stepscope.alerts.delivery import alertmanager

        return alertmanager.send(message, address)
    from stepscope.alerts.delivery import apprise_channel

    return apprise_channel.send(message, address)
