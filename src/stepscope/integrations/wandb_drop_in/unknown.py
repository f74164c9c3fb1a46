"""Names of W&B's API that do not exist here: an object that says so once and lets the script go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.recorder.complaints import Complaints

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

NOTICES = Complaints()
"""What the drop-in has said so far; each thing once."""


def is_pythons(name: str) -> bool:
    """Return whether a name belongs to a protocol of Python or of notebooks."""
    return (name.startswith("__") and name.endswith("__")) or name.startswith(("_repr_", "_ipython_"))


def unknown(name: str) -> Unknown:
    """Return the object for a name that the drop-in does not have; raise AttributeError for Python's own names.

    `inspect`, `copy`, `pickle` and notebooks ask every object for names such as `__wrapped__` and need the truth.
    """
    if is_pythons(name.rpartition(".")[2]):
        raise AttributeError(name)
    return Unknown(f"wandb.{name}")


class Unknown:
    """Anything that a script may do with a missing name has no effect; the first use of each name is reported."""

    def __init__(self, name: str) -> None:
        """Stand for `name`, a dotted path."""
        self._missing_name = name
        NOTICES.say(name, f"{name} is not part of stepscope's drop-in: it does nothing here, and the script goes on")

    def __getattr__(self, name: str) -> Unknown:
        if is_pythons(name):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the decorated function if used as a decorator, else this object."""
        is_decorator = len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], Unknown)
        return args[0] if is_decorator else self

    def __getitem__(self, key: object) -> Unknown:
        return self

    def __setitem__(self, key: object, value: object) -> None:
        """Ignore the value."""

    def __delitem__(self, key: object) -> None:
        """Ignore the call."""

    def __contains__(self, key: object) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let exceptions through."""

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        """Let a script derive a class from it."""
        return ()

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<{self._missing_name}: not part of stepscope's drop-in>"
