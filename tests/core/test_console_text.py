"""From the bytes that a program prints to lines of text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.console_text import (
    COLOUR,
    KEY_LINES,
    LONGEST_LINE,
    LONGEST_TEXT,
    FoldedLine,
    LineCleaner,
    LineFolder,
    for_terminal,
    visible,
)

SECRET = "hf_" + "a1B2" * 8


def folded(*parts: bytes) -> list[bytes]:
    """Return the lines of bytes that arrive in these parts, the open one last."""
    folder = LineFolder()
    lines = [line.data for part in parts for line in folder.feed(part)]
    return [*lines, folder.open_line().data]


@given(st.binary(max_size=200).map(lambda data: data.replace(b"a", b"\r").replace(b"b", b"\n")), st.data())
def test_folding_does_not_depend_on_how_bytes_arrive(data: bytes, draw: st.DataObject) -> None:
    """Bytes that arrive in any pieces give the same lines."""
    at = draw.draw(st.integers(0, len(data)))
    assert folded(data[:at], data[at:]) == folded(data)


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\ntwo", [b"one", b"two"]),
        (b"one\r\ntwo\r\n", [b"one", b"two", b""]),
        (b"\r10%\r20%\r100%\nnext", [b"100%", b"next"]),
        (b"10%\r20%\r", [b"20%"]),
        (b"50%\r        \rdone\n", [b"done", b""]),
    ],
)
def test_carriage_returns_keep_the_last_state(data: bytes, lines: list[bytes]) -> None:
    """A line that is drawn again counts in its last state; a carriage return before a line feed ends a line."""
    assert folded(data) == lines


def test_a_line_without_end_takes_bounded_memory() -> None:
    """Of ten megabytes on one line, and of endless bars, little is held."""
    folder = LineFolder()
    for _ in range(100):
        assert folder.feed(b"x" * 100_000) == []
        assert folder.feed(b"") == []
    assert folder.open_line() == FoldedLine(b"x" * LONGEST_LINE, is_cut=True)
    folder.feed(b"\r50%")
    assert folder.open_line() == FoldedLine(b"50%", is_redrawn=True)
    assert LineCleaner().close(FoldedLine(b"y" * LONGEST_LINE, is_cut=True)) == ("y" * LONGEST_TEXT, True)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xc3\xa9 \xff", "é \\xff"),
        (b"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        (b"\x1b[2K\x1b[1Aup\x1b]0;title\x07 \x1b[?25l", "up"),
        (b"bell\x07 back\x08 tab\t.", "bell back tab\t."),
        (b"\x01\x1f", "\\x01\\x1f"),
        (b"\x1b", ""),
    ],
)
def test_control_characters_except_colours_are_left_out(data: bytes, text: str) -> None:
    """What acts on a terminal is left out or escaped; bytes that are no text are shown as such."""
    assert visible(data) == text


@given(st.binary(max_size=300))
def test_any_bytes_become_safe_text(data: bytes) -> None:
    """Whatever is printed, the text has no control characters except tabs and colours, and can be encoded."""
    text = COLOUR.sub("", visible(data))
    assert all(one == "\t" or (ord(one) > 0x1F and not 0x7F <= ord(one) <= 0x9F) for one in text)
    text.encode()
    assert "\x1b" not in for_terminal(visible(data), in_colour=False)


def test_secrets_are_left_out_of_lines() -> None:
    """Tokens, also between colours, passwords and private keys of many lines do not reach the run."""
    cleaner = LineCleaner()

    def said(text: str) -> str:
        return cleaner.close(FoldedLine(text.encode()))[0]

    assert said(f"login with {SECRET}") == "login with [redacted]"
    assert SECRET not in said(f"\x1b[32m{SECRET}\x1b[0m")
    assert said("db_password=hunter2 ok") == "db_password=[redacted] ok"
    key = ["-----BEGIN RSA PRIVATE KEY-----", "MIIEow", "IBAAKC", "-----END RSA PRIVATE KEY-----"]
    assert [said(line) for line in [*key, "after"]] == ["[redacted]"] * 4 + ["after"]
    said(key[0])
    assert [said("x") for _ in range(KEY_LINES + 1)][-1] == "x"


def test_an_unfinished_word_that_may_be_a_secret_waits_for_its_end() -> None:
    """Of a line without an end, the start of a token is not written; a prompt and a bar are."""
    cleaner = LineCleaner()
    assert cleaner.peek(FoldedLine(f"token {SECRET[:12]}".encode()))[0].strip() == "token"
    assert cleaner.peek(FoldedLine(b"Loading model..."))[0] == "Loading model..."
    assert cleaner.peek(FoldedLine(b"accuracy 0.931"))[0] == "accuracy 0.931"
    assert cleaner.peek(FoldedLine(b"50%|##  | 5/10", is_redrawn=True))[0] == "50%|##  | 5/10"


def test_a_line_for_a_terminal_has_its_colours_or_none() -> None:
    """Colours end with the line; invisible and direction-changing characters are replaced."""
    assert for_terminal("\x1b[1mbold", in_colour=True) == "\x1b[1mbold\x1b[0m"
    assert for_terminal("\x1b[1mbold\u202e", in_colour=False) == "bold\ufffd"


TOKENS = (
    f"using {SECRET} now",
    f"\rloading {SECRET} 50%",
    "aws AKIAIOSFODNN7EXAMPLE x",
    "\rGET https://user:hunterhunterhunter@host/x 50%",
    '{"password": "hunterhunterhunter"}',
)


@pytest.mark.parametrize("text", TOKENS)
def test_no_part_of_a_secret_is_kept_wherever_two_writes_meet(text: str) -> None:
    """A line that is written while a token in it is unfinished shows neither its start nor, later, its end."""
    parts = {word[at : at + 6] for word in re.findall(r"[A-Za-z0-9_-]{16,}", text) for at in range(len(word) - 5)}
    for cut in range(1, len(text)):
        folder, cleaner = LineFolder(), LineCleaner()
        folder.feed(text[:cut].encode())
        shown, _ = cleaner.peek(folder.open_line())
        (line,) = folder.feed(f"{text[cut:]}\n".encode())
        whole, _ = cleaner.close(line)
        assert not [part for part in parts if part in shown or part in whole], (cut, shown, whole)
