"""A pattern that a person searches text with: plain text, or a regular expression that cannot take long."""

from __future__ import annotations

import re
from typing import NamedTuple

from stepscope.core.errors import UsageError

LONGEST = 200
"""Characters of the longest pattern."""
MOST_REPEATS = 4
"""Repeats in one expression: each may multiply the time by the length of the text."""
SEARCHED = 2000
"""Characters of a text that an expression is searched in; plain text is searched in all of it."""
_SLOW = re.compile(r"\)[*+?{]|\\[1-9]|\(\?P?[=<!]")
_REPEAT = re.compile(r"[*+{]")


class TextPattern(NamedTuple):
    """What to look for; upper and lower case are the same."""

    plain: str = ""
    expression: re.Pattern[str] | None = None

    @classmethod
    def of(cls, text: str) -> TextPattern:
        """Read a pattern: `/…/` is a regular expression, anything else plain text.

        Raises UsageError if it is too long, not an expression, or one that may take long.
        """
        what = f"search for {text[:80]!r}"
        if len(text) > LONGEST:
            raise UsageError(what, f"it has more than {LONGEST} characters", "use a shorter one")
        if len(text) < 3 or not (text.startswith("/") and text.endswith("/")):
            return cls(text.lower())
        inner = text[1:-1]
        if _SLOW.search(inner) or len(_REPEAT.findall(inner)) > MOST_REPEATS:
            cause = "repeated groups, back references, look-around and more than four repeats may take too long"
            raise UsageError(what, cause, "use a simpler expression, or plain text")
        try:
            return cls("", re.compile(inner, re.IGNORECASE))
        except re.error as error:
            raise UsageError(what, f"it is not a regular expression ({error})", "use plain text, without /") from error

    def matches(self, text: str) -> bool:
        """Return whether a text contains it."""
        if self.expression is not None:
            return self.expression.search(text[:SEARCHED]) is not None
        return self.plain in text.lower()
