"""Bytes that a program prints, as lines of text: without carriage returns, control characters and secrets."""

from __future__ import annotations

import re
from typing import NamedTuple

from stepscope.core.names import REPLACEMENT, UNSAFE
from stepscope.core.redact import REDACTED, redact_text

LONGEST_TEXT = 16 << 10
"""Characters that are kept of a line."""
LONGEST_LINE = LONGEST_TEXT + (4 << 10)
"""Bytes of a line that are looked at: more than are kept, so that no half of a secret survives the cut."""
KEY_LINES = 200
"""Maximum lines of a private key."""
COLOUR = re.compile("\x1b\\[[0-9;:]*m")
_SEQUENCE = re.compile(
    "\x1b(?:\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?"  # operating system commands, such as titles and links
    "|[PX^_][^\x1b]*(?:\x1b\\\\)?"
    "|\\[(?![0-9;:]*m)[0-?]*[ -/]*[@-~]?"  # control sequences except colours
    "|(?!\\[)[ -/]*[0-~]?)"
)
_SILENT = re.compile("[\x00\x07\x08\x0e\x0f\x7f]")
_CONTROL = re.compile("[\x01-\x06\x0a-\x1a\x1c-\x1f\x80-\x9f]")
_UNFINISHED = re.compile(r"\S*$")
_ORDINARY = re.compile(r"[A-Za-z]?[a-z]{0,11}[.,:;?!…]*|[-+(]?\d[\d.,:]{0,7}(?:[A-Za-zµ%]{0,2}(?:/\w{1,4})?)[,;)]?")
"""A word or a number: no start of a token, which has signs, or digits and letters, or more capital letters."""
_END_OF_BAR = re.compile(r".*[\])}%|]|[\d.,:/<>?+~-]*\d[\d.,:]*[A-Za-zµ]{0,4}(?:/\w{1,4})?")
"""How progress bars end: with a bracket, or with a number and its unit."""


class FoldedLine(NamedTuple):
    """A line as a terminal would show it in the end."""

    data: bytes
    is_cut: bool = False
    is_redrawn: bool = False
    """Whether a carriage return replaced an earlier state of it, as progress bars do."""


class LineFolder:
    """Cuts bytes into lines and keeps the last state of a line that is drawn again; in bounded memory."""

    def __init__(self) -> None:
        """Start with nothing printed."""
        self._open = b""
        self._is_cut = self._is_redrawn = False

    @property
    def is_open(self) -> bool:
        """Whether there is a line that has no end yet."""
        return bool(self._open)

    def feed(self, data: bytes) -> list[FoldedLine]:
        """Take the next bytes; return the lines that end in them."""
        *parts, rest = data.split(b"\n")
        lines = []
        for part in parts:
            self._add(part)
            lines.append(self.open_line())
            self._open, self._is_cut, self._is_redrawn = b"", False, False
        self._add(rest)
        return lines

    def open_line(self) -> FoldedLine:
        """Return the line that has no end yet."""
        return FoldedLine(self._open.rstrip(b"\r"), self._is_cut, self._is_redrawn)

    def _add(self, part: bytes) -> None:
        if b"\r" in part or self._open.endswith(b"\r"):
            whole = self._open + part
            drawn = whole.rstrip(b"\r")
            at = drawn.rfind(b"\r")
            if at >= 0:
                drawn, self._is_cut, self._is_redrawn = drawn[at + 1 :], False, True
            self._open = drawn[:LONGEST_LINE] + (b"\r" if whole.endswith(b"\r") else b"")
            self._is_cut |= len(drawn) > LONGEST_LINE
        elif part:
            room = LONGEST_LINE - len(self._open)
            self._open += part[:room] if room > 0 else b""
            self._is_cut |= len(part) > room


class LineCleaner:
    """Turns the lines of one stream into text for the run; remembers whether it is inside a private key."""

    def __init__(self) -> None:
        """Start outside any key."""
        self._key_lines = 0

    def close(self, line: FoldedLine) -> tuple[str, bool]:
        """Return the text of a complete line, and whether it is cut."""
        text = visible(line.data)
        if self._key_lines:
            self._key_lines = 0 if "-----END" in text else self._key_lines - 1
            return REDACTED, line.is_cut
        if "-----BEGIN" in text and "PRIVATE KEY" in text and "-----END" not in text:
            self._key_lines = KEY_LINES
        return _kept(without_secrets(text), is_cut=line.is_cut)

    def peek(self, line: FoldedLine) -> tuple[str, bool]:
        """Return the text of a line that has no end yet; without its last word if that may be part of a secret."""
        if self._key_lines:
            return REDACTED, line.is_cut
        text = visible(line.data)
        last = _UNFINISHED.search(text)
        known = (_ORDINARY, _END_OF_BAR) if line.is_redrawn else (_ORDINARY,)
        if last is not None and not any(pattern.fullmatch(last[0]) for pattern in known):
            text = text[: last.start()]
        return _kept(without_secrets(text), is_cut=line.is_cut)


def visible(data: bytes) -> str:
    """Return bytes as text whose only control characters are tabs and colour codes."""
    text = data.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text.rstrip()
    text = _SILENT.sub("", _SEQUENCE.sub("", text) if "\x1b" in text else text)
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text).rstrip()


def without_secrets(text: str) -> str:
    """Return a text without secrets; one that has any loses its colours too, which may stand inside a secret."""
    plain = COLOUR.sub("", text) if "\x1b" in text else text
    shown = redact_text(plain)
    return text if shown == plain else shown


def _kept(text: str, *, is_cut: bool) -> tuple[str, bool]:
    return text[:LONGEST_TEXT], is_cut or len(text) > LONGEST_TEXT


def for_terminal(text: str, *, in_colour: bool) -> str:
    """Return a line for a terminal: with its colours or without, and with nothing else that acts on the terminal."""
    parts = COLOUR.split(text.expandtabs())
    colours = COLOUR.findall(text) if in_colour else [""] * (len(parts) - 1)
    safe = [UNSAFE.sub(REPLACEMENT, part) for part in parts]
    shown = safe[0] + "".join(colour + part for colour, part in zip(colours, safe[1:], strict=True))
    return f"{shown}\x1b[0m" if any(colours) else shown
