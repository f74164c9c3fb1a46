"""Functions of higher rooms that a lower room calls.

A lower room asks for a function by a short name; the top package, which may know every room, says where it is. Nothing
is loaded before the first call.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers treat typing's, without the 5 ms of importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_places: dict[str, tuple[str, str]] = {}


def provide(places: dict[str, tuple[str, str]]) -> None:
    """Say in which module, and under which name, each function is."""
    _places.update(places)


def provided(name: str) -> Callable[..., Any]:
    """Load a function that the top package has provided."""
    import importlib  # kept off the import of the package

    module, attribute = _places[name]
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function
