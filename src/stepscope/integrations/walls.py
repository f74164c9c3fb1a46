"""The walls between our hooks and the training: an exception of ours is reported and never reaches it."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, TypeVar, cast

from stepscope.core.errors import in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Method = TypeVar("Method", bound="Callable[..., Any]")
MOST = 3
"""Failures after which a measurement is given up."""


def guarded(method: Method) -> Method:
    """Return a method that reports each type of exception once, through the object's `notices`, and never raises.

    It runs in the training thread: unless an exception occurs, it only calls the method.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever fails in a hook is reported, and the training goes on
            where = f"{type(self).__name__}.{method.__name__}"
            message = f"cannot go on in {where}: {in_words(error, 300)}; the training goes on"
            self.notices.say(f"{where} {type(error).__name__}", message)
            return None

    return cast("Method", call)


class Failures:
    """Count the failures of one measurement; as a context manager it suppresses the exceptions of its block.

    The first failure and the one that ends the measurement are events of `run`; `what` names the measurement.
    """

    def __init__(self, run: Any, what: str) -> None:
        self._run, self._what = run, what
        self.count = 0

    @property
    def over(self) -> bool:
        """Whether the measurement is given up."""
        return self.count >= MOST

    def add(self, error: BaseException) -> None:
        """Count a failure."""
        self.count += 1
        if self.count in {1, MOST}:
            self._run.own_event(
                "measurement_failed",
                what=self._what,
                given_up=self.over,
                cause=in_words(error, 500),
                remedy="the training is not affected; report this with the versions of torch and stepscope",
            )

    def __enter__(self) -> None:
        """Enter a block whose exceptions are counted."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        """Count an exception and suppress it; interrupts and exits propagate."""
        if isinstance(error, Exception):
            self.add(error)
            return True
        return False

    @contextlib.contextmanager
    def undoing(self, undo: Callable[[], None]) -> Iterator[None]:
        """Count and suppress the exceptions of a block, and call `undo` after one."""
        before = self.count
        with self:
            yield
        if self.count > before:
            undo()
