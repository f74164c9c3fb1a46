"""Clean metric names: any object in, a short printable text out, and never an exception.

A name is only text: it never becomes a path, so `../` is harmless. A cleaned name stays the same when cleaned again.
"""

from __future__ import annotations

import re

from stepscope.core.walls import attempt

MAX_LENGTH = 256
"""Characters of the longest name."""

REPLACEMENT = "\ufffd"

NOT_TEXT, CHARACTERS, TOO_LONG, EMPTY, UNREADABLE = "not-text", "characters", "too-long", "empty", "unreadable"

REMEDIES = {
    NOT_TEXT: "a metric name was no string and was converted; pass a str",
    CHARACTERS: "a metric name held control, invisible or direction-changing characters and got U+FFFD in their place; "
    "use printable characters",
    TOO_LONG: f"a metric name of more than {MAX_LENGTH} characters was cut, with a hash at its end; use a shorter one",
    EMPTY: "a value without a metric name was refused; give it a name",
    UNREADABLE: "a metric name could not be converted to text and its value was refused; pass a str",
}
"""The notice for the user, once per kind of problem."""

UNSAFE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # controls, NUL among them
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction marks and overrides, zero-width space
    "\u2028\u2029\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb"  # line separators, invisible operators
    "\U000e0000-\U000e007f"  # tag characters: invisible text
    "\ud800-\udfff"  # lone surrogates: not encodable
    "]"
)


def clean(name: object) -> tuple[str, str | None]:
    """Return the name as it is recorded and the kind of problem it had; an empty name means refused.

    Names that differ only in replaced characters become one; names that differ only after the cut stay distinct.
    """
    if type(name) is str and 0 < len(name) <= MAX_LENGTH and name.isascii() and name.isprintable():
        text = name.strip()
        return (text, None) if text else ("", EMPTY)
    text, problem = _text_of(name)
    text = text.strip()
    if not text:
        return "", problem if problem == UNREADABLE else EMPTY
    if len(text) > MAX_LENGTH:
        return f"{UNSAFE.sub(REPLACEMENT, text[: MAX_LENGTH - 13])}~{_digest(text)}", TOO_LONG
    safe = UNSAFE.sub(REPLACEMENT, text)
    return safe, problem if safe == text else CHARACTERS


def _text_of(name: object) -> tuple[str, str | None]:
    """Return any object as exact `str`, and its problem; `__str__` of a user's object may raise anything."""
    if issubclass(type(name), str):
        return str.__str__(name), None
    return attempt(lambda: (_decoded(name), NOT_TEXT), lambda _: ("", UNREADABLE))


def _decoded(name: object) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, (bytes, bytearray)) else str.__str__(str(name))


def _digest(text: str) -> str:
    """Return 12 hex digits that identify a text."""
    import hashlib

    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
