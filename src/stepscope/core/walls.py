"""The walls around code that may fail in any way: user code, plugins, one of several independent parts.

Use them only where one part must not stop the others; where the possible errors are known, catch those.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


@contextmanager
def wall(report: Callable[[Exception], object]) -> Iterator[None]:
    """Keep any fault of the block from the code around it, and hand it to `report`, which must not drop it silently."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - that is what the wall is for; `report` gets the error
        report(error)


def attempt(call: Callable[[], T], otherwise: Callable[[Exception], T]) -> T:
    """Return `call()` or, if it fails in any way, `otherwise(error)`."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - that is what the wall is for; `otherwise` gets the error
        return otherwise(error)
