"""Do something right after a module is imported, at no cost for the others."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class AfterImport:
    """A finder in front of all others that finds nothing itself; it removes itself once it waits for nothing."""

    def __init__(self) -> None:
        """Wait for nothing yet."""
        self._waiting: dict[str, list[Callable[[ModuleType], None]]] = {}

    def call(self, name: str, function: Callable[[ModuleType], None]) -> None:
        """Call `function` with the module `name` after its import; now, if it is imported already."""
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            function(module)
            return
        self._waiting.setdefault(name, []).append(function)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Wait for nothing any more."""
        self._waiting.clear()
        self._leave()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002 - the protocol
        """Find a module that is waited for by the other finders, and wrap its loader; find no other module."""
        functions = self._waiting.pop(name, None)
        if functions is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            self._waiting[name] = functions
            return None
        spec.loader = _Loader(spec.loader, functions, self._leave)  # type: ignore[assignment]
        return spec

    def _leave(self) -> None:
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader:
    """Runs the module's own loader, then the functions; the module keeps no trace of this loader."""

    def __init__(self, loader: Any, functions: list[Callable[[ModuleType], None]], done: Callable[[], None]) -> None:
        self._loader, self._functions, self._done = loader, functions, done

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        spec.loader = self._loader
        module: ModuleType | None = self._loader.create_module(spec)
        spec.loader = self  # type: ignore[assignment]
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._done()
        for function in self._functions:
            function(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
