"""The numbers 0, 1 and 2 of a program that was started without some of its standard streams."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def closed_streams_reserved() -> Iterator[None]:
    """Give the numbers of closed standard streams to no file that is opened meanwhile; they are closed again after.

    A file of ours with such a number would get what the program's libraries print.
    """
    held = []
    try:
        while (descriptor := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
            held.append(descriptor)
        os.close(descriptor)
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
