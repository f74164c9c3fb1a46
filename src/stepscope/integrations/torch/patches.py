"""Replace attributes of other modules and classes temporarily, and restore them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MISSING = object()


class Patches:
    """Replaced attributes; each is restored unless other code has replaced it since."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]], *, must: bool = False) -> bool:
        """Replace `owner.name` by what `make` returns for it; return False if there is no such attribute.

        Raises:
            AttributeError: there is no such attribute, and it `must` be there.
        """
        original = getattr(owner, name, None)
        if original is None:
            if must:
                raise AttributeError(f"this version has no {getattr(owner, '__name__', owner)}.{name}")
            return False
        wrapper = make(original)
        functools.update_wrapper(wrapper, original)
        self._done.append((owner, name, vars(owner).get(name, MISSING), wrapper))
        setattr(owner, name, wrapper)
        return True

    def exchange(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Replace our wrapper of the original by another, if it is still in place."""
        for at, (other, what, before, wrapper) in enumerate(self._done):
            if other is owner and what == name and vars(owner).get(name) is wrapper:
                original = wrapper.__wrapped__
                other_wrapper = functools.update_wrapper(make(original), original)
                self._done[at] = (owner, name, before, other_wrapper)
                setattr(owner, name, other_wrapper)

    def restore(self) -> None:
        """Restore everything; a wrapper that was wrapped again stays, and must do nothing by itself."""
        for owner, name, before, wrapper in reversed(self._done):
            if vars(owner).get(name) is not wrapper:
                continue
            if before is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._done = []
