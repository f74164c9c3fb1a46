"""Keep what goes wrong inside a framework's callback away from the training."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar, cast

from stepscope.core.errors import in_words

if TYPE_CHECKING:
    from collections.abc import Callable

Method = TypeVar("Method", bound="Callable[..., Any]")


def guarded(method: Method) -> Method:
    """Return a method that says once per kind what went wrong, through the object's `notices`, and never raises."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever fails in a monitor, the training goes on; it is told
            where, cause = f"{type(self).__name__}.{method.__name__}", in_words(error, 300)
            self.notices.say(f"{where} {type(error).__name__}", f"cannot go on in {where}: {cause}; the training does")
            return None

    return cast("Method", call)
