"""Run a program in this process as Python itself would: as `__main__`, with its own arguments and path.

Its output, exit code, signals, tracebacks, pickles and worker processes are the same as without us.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import sys
from functools import partial
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

MAIN = "__main__"
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
"""The folder of our own code."""
_KEPT: list[Any] = []
"""The previous `__main__` module: its objects must live as long as the process."""


class FoundProgram(NamedTuple):
    """A program that is ready to run."""

    name: str
    """Value of sys.argv[0]."""
    load: Callable[[], CodeType]
    """Returns its code; raises SyntaxError."""
    folder: str
    """Value of sys.path[0]."""
    facts: dict[str, Any]
    """The module's `__file__`, `__spec__` and similar attributes."""


def find_script(path: str) -> FoundProgram:
    """Find a script by its path, in a folder its `__main__.py`; raise UsageError if Python cannot read it."""
    file = os.path.abspath(os.path.join(path, f"{MAIN}.py") if os.path.isdir(path) else path)
    try:
        with io.open_code(file) as stream:
            source = stream.read()
    except OSError as error:
        raise UsageError(f"run {path}", error.strerror or str(error), "name a script, or a module with -m") from None
    loader = importlib.machinery.SourceFileLoader(MAIN, file)
    facts = {"__file__": file, "__spec__": None, "__package__": None, "__cached__": None, "__loader__": loader}
    folder = path if os.path.isdir(path) else os.path.dirname(os.path.realpath(file))
    return FoundProgram(path, partial(loader.source_to_code, source, file), folder, facts)


def find_module(name: str) -> FoundProgram:
    """Find a module by its name, of a package its `__main__`; raise UsageError if it cannot be run."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd()
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.{MAIN}")
    except (ImportError, ValueError) as error:
        raise UsageError(f"run the module {name}", str(error), "install it, or name a script") from None
    loader = spec.loader if spec is not None else None
    if spec is None or not isinstance(loader, importlib.abc.InspectLoader):
        raise UsageError(f"run the module {name}", "there is no such module", "install it, or name a script")
    facts = {"__file__": spec.origin, "__spec__": spec, "__package__": spec.parent, "__cached__": spec.cached}
    code = partial(_code_of, loader, spec.name)
    return FoundProgram(spec.origin or name, code, os.getcwd(), {**facts, "__loader__": loader})


def _code_of(loader: importlib.abc.InspectLoader, name: str) -> CodeType:
    code = loader.get_code(name)
    if code is None:
        raise UsageError(f"run the module {name}", "it has no Python code", "name a script")
    return code


def prepare(program: FoundProgram, arguments: list[str]) -> ModuleType:
    """Set the module `__main__`, sys.argv and sys.path for the program; return the module."""
    module = ModuleType(MAIN)
    module.__dict__.update(program.facts, __builtins__=sys.modules["builtins"])
    _KEPT.append(sys.modules.get(MAIN))
    sys.modules[MAIN] = module
    sys.argv[:] = [program.name, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = program.folder
    return module


def execute(program: FoundProgram, module: ModuleType) -> int:
    """Run the program to its end. Exceptions propagate; an error's traceback is shown without our frames."""
    code: CodeType | None = None
    try:
        code = program.load()
        _Once(code).exec_module(module)
    except SystemExit:
        raise
    except BaseException as error:
        trace = own_frames(error.__traceback__, code)
        error.__traceback__ = trace
        show, sys.excepthook = sys.excepthook, _shown_already(error, trace)
        show(type(error), error, trace)
        raise
    return 0


def own_frames(trace: TracebackType | None, code: CodeType | None) -> TracebackType | None:
    """Return a traceback from the program's own frame on, without our hooks in between.

    Empty if that frame is missing (a syntax error).
    """
    inner = trace
    while inner is not None and inner.tb_frame.f_code is not code:
        inner = inner.tb_next
    at = inner
    while at is not None and at.tb_next is not None:
        if at.tb_next.tb_next is not None and at.tb_next.tb_frame.f_code.co_filename.startswith(PACKAGE):
            at.tb_next = at.tb_next.tb_next
        else:
            at = at.tb_next
    return inner


def _shown_already(error: BaseException, trace: TracebackType | None) -> Callable[..., None]:
    def hook(kind: type[BaseException], value: BaseException, at: TracebackType | None) -> None:
        if value is error:  # it was shown; the stored traceback should not have our frames either
            value.__traceback__ = trace
        else:
            sys.__excepthook__(kind, value, at)

    return hook


class _Once(importlib.abc.InspectLoader):
    """A loader of code that was compiled before."""

    def __init__(self, code: CodeType) -> None:
        self._code = code

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - the protocol
        return self._code

    def get_source(self, fullname: str) -> None:  # noqa: ARG002 - the protocol
        return None
