"""The wall around code that may fail in any way: user code, plugins, one of several independent parts."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def wall(report: Callable[[Exception], object]) -> Iterator[None]:
    """Keep any fault of the block from the code around it, and hand it to `report`, which must not drop it silently.

    Use it only where one part must not stop the others; where the possible errors are known, catch those.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001 - that is what the wall is for; `report` gets the error
        report(error)
