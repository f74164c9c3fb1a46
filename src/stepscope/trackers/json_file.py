"""A JSON file that is written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from stepscope.core.strict_json import strict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def write_json(target: Path, facts: dict[str, Any], instead: Callable[[float], Any]) -> None:
    """Write facts to a file, with `instead(number)` in place of every number that is not finite; makes its folder.

    Raises:
        OSError: it cannot be written; a file that was there before is as it was.
    """
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(strict(facts, instead), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(part, target)
    finally:
        with contextlib.suppress(OSError):  # almost always: it has its name, or was never made
            part.unlink()
