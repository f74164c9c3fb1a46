"""The arguments of a script, read from its argument parser or Hydra: the configuration of its run.

Only for scripts that `stepscope run` runs. What a parser returns or raises is unchanged.
"""

from __future__ import annotations

import argparse
import enum
import functools
import pathlib
import sys
import threading
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import in_words
from stepscope.recorder.complaints import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    Keep = Callable[[Mapping[str, Any]], None]

MOST_VALUES, LONGEST, DEEPEST = 300, 2000, 8
"""Maximum values of a collection, characters of a text, and nesting levels."""
TOOLS = ("hydra", "torch.distributed", "argcomplete")
"""Packages whose own parsers read the command line before the script does."""
_NOTHING = object()


def follow_argparse(keep: Keep, parsers: type[argparse.ArgumentParser] = argparse.ArgumentParser) -> None:
    """Pass to `keep` what a parser makes of the program's arguments, from now on."""
    parse = parsers.parse_known_args
    own = threading.local()

    @functools.wraps(parse)
    def parse_known_args(self: argparse.ArgumentParser, *words: Any, **more: Any) -> Any:
        if getattr(own, "is_busy", False):  # a sub-command's parser: its values come back in the outer parser's
            return parse(self, *words, **more)
        own.is_busy = True
        try:
            found = parse(self, *words, **more)
        finally:
            own.is_busy = False
        given = words[0] if words else more.get("args")
        is_of_program = given is None or (isinstance(given, (list, tuple)) and list(given) == sys.argv[1:])
        if is_of_program and not _caller().startswith(TOOLS):
            _note(keep, lambda: vars(found[0]))
        return found

    parsers.parse_known_args = parse_known_args  # type: ignore[method-assign]


def follow_hydra(module: ModuleType, keep: Keep) -> None:
    """Pass to `keep` the configuration that Hydra composes; `module` is hydra.core.hydra_config."""
    holder = module.HydraConfig
    put = holder.set_config

    @functools.wraps(put)
    def set_config(self: Any, cfg: Any) -> Any:
        done = put(self, cfg)
        _note(keep, lambda: _composed(cfg))
        return done

    holder.set_config = set_config


def _composed(cfg: Any) -> dict[str, Any]:
    """Return a configuration without Hydra's own part, as written: the program's resolvers are not called."""
    plain = sys.modules["omegaconf"].OmegaConf.to_container(cfg, resolve=False)
    return {str(key): value for key, value in plain.items() if key != "hydra"}


def _note(keep: Keep, read: Callable[[], Mapping[str, Any]]) -> None:
    try:
        found = plain(read())
        if found:
            keep(found)
    except Exception as error:  # noqa: BLE001 - what a program keeps in a namespace may raise anything; it is reported
        tell(f"cannot read the settings of the script: {in_words(error, 200)}; pass them to init(config=...)")


def _caller() -> str:
    """Return the module that called the parser."""
    frame = sys._getframe(2)  # noqa: SLF001 - the stack is what is asked for
    while frame.f_back is not None and frame.f_globals.get("__name__") in {"argparse", __name__}:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def plain(value: Any, depth: int = 0) -> Any:
    """Return the plain data in a value; functions and other objects are left out, and none is called."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value[:LONGEST]
    named = _named(value)
    if named is not None or depth >= DEEPEST:
        return _NOTHING if named is None else named
    if isinstance(value, dict):
        items = ((str(key), plain(item, depth + 1)) for key, item in list(value.items())[:MOST_VALUES])
        return {key: item for key, item in items if item is not _NOTHING}
    if isinstance(value, (list, tuple)):
        found = [plain(item, depth + 1) for item in value[:MOST_VALUES]]
        return [item for item in found if item is not _NOTHING]
    return _NOTHING


def _named(value: Any) -> str | None:
    """Return the text of a value that stands for one: a path, an enum member, torch's devices and types."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, pathlib.PurePath):
        return str(value)
    is_torch = type(value).__module__ == "torch" and type(value).__name__ in {"device", "dtype"}
    return str(value) if is_torch else None
