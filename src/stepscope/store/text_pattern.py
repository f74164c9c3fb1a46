"""A pattern that a person searches text with: plain text, or a regular expression.

Expressions are DuckDB's (RE2): their time grows with the length of a text and no faster, whatever a person writes.
Python's own can take years for one line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import duckdb

from stepscope.core.errors import UsageError
from stepscope.store.parquet import connect
from stepscope.store.sql_text import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

_EDGES = re.compile(r"[\^$]|\\[AzbBQ]")
"""Parts of an expression that look at what stands before or behind the text."""
LONGEST = 200
"""Characters of the longest pattern."""


class TextPattern:
    """What to look for: `/…/` is a regular expression, anything else plain text. Upper and lower case are the same."""

    def __init__(self, text: str) -> None:
        """Read a pattern; raises UsageError if it is too long, or not an expression."""
        what = f"search for {text[:80]!r}"
        if len(text) > LONGEST:
            raise UsageError(what, f"it has more than {LONGEST} characters", "use a shorter one")
        is_expression = len(text) > 2 and text.startswith("/") and text.endswith("/")
        self.plain = "" if is_expression else text.lower()
        """The text looked for, in lower case; empty for an expression."""
        if is_expression:
            self._has_edges = _EDGES.search(text) is not None
            self._connection = connect(memory="256MB")
            expression = quoted(text[1:-1])  # not a parameter: it would be compiled again for every text
            self._query = f"SELECT regexp_matches(text, {expression}, 'i') FROM (SELECT unnest($texts) AS text)"  # noqa: S608 (quoted)
            try:
                self.matches([""])
            except duckdb.Error as error:
                cause = str(error).partition("\n")[0].rpartition(" Error: ")[2]
                remedy = "use plain text, without /"
                raise UsageError(what, f"it is not a regular expression ({cause})", remedy) from error

    def matches(self, texts: Sequence[str]) -> list[bool]:
        """Return of each text whether it contains the pattern; a call for many texts costs little more than for one."""
        if self.plain:
            return [self.plain in text.lower() for text in texts]
        return [found for (found,) in self._connection.execute(self._query, {"texts": list(texts)}).fetchall()]

    def may_be_in(self, block: str) -> bool:
        """Return whether any part of a block may have the pattern: False is certain, and found quickly."""
        return bool(self.plain) or self._has_edges or self.matches([block])[0]
