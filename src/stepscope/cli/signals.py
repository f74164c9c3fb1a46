"""Signals that end a command which has something to put back: a cursor, a child, a file."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def ended_by_signals() -> Iterator[list[BaseException]]:
    """Let signals end us like an exception, so that the cursor comes back and children are stopped.

    The list holds what was raised: an exception out of a signal handler can be lost in a finalizer.
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
