"""Turn signals into exceptions, for commands that must restore a terminal or stop a child."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def ended_by_signals() -> Iterator[list[BaseException]]:
    """Raise an exception on SIGINT, SIGTERM and SIGHUP, so that the terminal is restored and children are stopped.

    The list holds the raised exceptions: one from a signal handler can be lost in a finalizer.
    """
    ends: list[BaseException] = []

    def end(number: int, _: object) -> NoReturn:
        ends.append(KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number))
        raise ends[-1]

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield ends
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
