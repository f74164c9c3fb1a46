"""Fill in message templates: only names and number formats, so no template can reach into an object or raise."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST = 2000
"""Characters of a message."""
_PLACE = re.compile(r"\{\{|\}\}|\{([^{}:!]{1,256})(?::([^{}]{0,32}))?\}")
_FORMAT = re.compile(r"(?:[ _*-]?[<>^=])?[-+ ]?0?\d{0,2}[,_]?(?:\.\d{1,2})?[bcdeEfFgGnosxX%]?", re.ASCII)


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Return a template with its placeholders replaced: `{loss:.2f}` by `loss`.

    A placeholder without a value stays as its name in braces; a format that does not fit its value is ignored. It
    reads no attributes or items, and never raises.
    """

    def replaced(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        name = match[1].strip()
        return _shown(values[name], match[2] or "") if name in values else f"{{{name}}}"

    return _PLACE.sub(replaced, str(template)[: MOST * 4])[:MOST]


def _shown(value: Any, layout: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return str(value)[:MOST] if value is None or isinstance(value, (bool, list, tuple, dict)) else "?"
    if layout and _FORMAT.fullmatch(layout):
        with contextlib.suppress(ValueError, OverflowError, TypeError):
            return format(value, layout)
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:MOST]
