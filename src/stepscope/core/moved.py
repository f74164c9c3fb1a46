"""Keep the old import paths of modules that moved to a sub-package of their room."""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType


class MovedModules(MetaPathFinder, Loader):
    """Find a module under its old name and return the module at its new place."""

    def __init__(self, room: str, places: Mapping[str, str]) -> None:
        """Take the package that both names start with, and the new name below it of each old one."""
        self.places = {f"{room}.{old}": f"{room}.{new}" for old, new in places.items()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load an old name; None for every other module."""
        del path, target
        return ModuleSpec(fullname, self) if fullname in self.places else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module at its new place under the old name, and warn."""
        place = self.places[module.__name__]
        warnings.warn(f"{module.__name__} has moved to {place}", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = importlib.import_module(place)


def forward(room: str, places: Mapping[str, str]) -> None:
    """Let old names of a room's modules be imported; called once, by the room's `__init__`."""
    sys.meta_path.append(MovedModules(room, places))
