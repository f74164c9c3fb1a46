"""Follow the calls of a tracker's methods: each goes on as it is, and its arguments are passed on by name."""

from __future__ import annotations

import inspect
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.integrations.catching.caught import Caught
    from stepscope.integrations.torch.patches import Patches


class CallFollower:
    """Wraps methods of one tracker. Calls that the tracker makes of its own methods are not followed again.

    A followed call costs some microseconds: where calls are frequent and cheap, a tracker's file has its own wrapper.
    """

    def __init__(self, caught: Caught, source: str, patches: Patches) -> None:
        self._caught, self.source, self._patches = caught, source, patches
        self._inside = threading.local()

    def follow(self, owner: Any, name: str, take: Callable[[dict[str, Any]], None], *, must: bool = False) -> None:
        """Pass the arguments of each call of `owner.name` to `take` after it, also if it raises.

        A method that is missing is skipped, or raises AttributeError if it `must` be there.
        """
        inside, complain, source = self._inside, self._caught.complain, self.source

        def wrap(original: Any) -> Any:
            signature = inspect.signature(original)

            def call(*args: Any, **named: Any) -> Any:
                if getattr(inside, "is_busy", False):
                    return original(*args, **named)
                inside.is_busy = True
                try:
                    return original(*args, **named)
                finally:
                    inside.is_busy = False
                    try:
                        bound = signature.bind(*args, **named)
                        bound.apply_defaults()
                        take(bound.arguments)
                    except Exception as error:  # noqa: BLE001 - whatever a script hands over; it is reported
                        complain(source, error)

            return call

        self._patches.wrap(owner, name, wrap, must=must)

    def things(self, owner: Any, methods: Mapping[str, tuple[str, str, str]], step: str = "step") -> None:
        """Make events of what is no number: by method, the kind, and the arguments that are the name and the value."""

        def taking(kind: str, name: str, value: str) -> Callable[[dict[str, Any]], None]:
            def take(given: dict[str, Any]) -> None:
                self._caught.note(self.source, str(given.get(name) or kind), given.get(value), given.get(step), kind)

            return take

        for method, (kind, name, value) in methods.items():
            self.follow(owner, method, taking(kind, name, value))
