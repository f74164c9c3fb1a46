"""Placeholders for secrets in settings: `${NAME}` from the environment, `${file:/path}` from a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_SECRET = 4096
"""Maximum bytes of a secret in a file."""
HOLE = re.compile(r"\$\{(file:)?([^{}\s]{1,500})\}")


def filled(text: str, environ: Mapping[str, str], what: str) -> str:
    """Return a text with its placeholders filled; UsageError if one cannot be, in which `what` is what failed."""

    def fill(hole: re.Match[str]) -> str:
        if hole[1]:
            return from_file(hole[2], what)
        if hole[2] not in environ:
            raise UsageError(what, f"the variable {hole[2]} is not set", "set it where the training runs")
        return environ[hole[2]]

    return HOLE.sub(fill, text)


def from_file(path: str, what: str) -> str:
    """Return the secret in a file; UsageError if it cannot be read."""
    try:
        with Path(path).expanduser().open("rb") as file:
            return file.read(MAX_SECRET).decode().strip()
    except (OSError, ValueError, RuntimeError) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        remedy = "make it readable for this user"
        raise UsageError(what, f"the file {path} cannot be read: {cause}", remedy) from None
