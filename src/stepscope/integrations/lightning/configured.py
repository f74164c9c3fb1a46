"""Options of the Lightning callbacks from the configuration, for those that the program does not pass itself."""

from __future__ import annotations

import functools
import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.config import discover, load_or_default

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def configured(group: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for a constructor: options that are not passed come from `callbacks.<group>`, if set there."""

    def decorate(init: Callable[..., None]) -> Callable[..., None]:
        names = list(inspect.signature(init).parameters)[1:]

        @functools.wraps(init)
        def with_settings(self: object, *arguments: Any, **options: Any) -> None:
            passed = {*names[: len(arguments)], *options}
            settings = options_of(group)
            configured = {name: settings[name] for name in settings.keys() - passed if name in names}
            init(self, *arguments, **configured, **options)

        return with_settings

    return decorate


def options_of(group: str, cwd: Path | None = None, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the options of a callback that the configuration sets, by the name of the option."""
    config = load_or_default(discover(cwd or Path.cwd(), environ), environ=environ)
    return config.options(f"callbacks.{group}")
