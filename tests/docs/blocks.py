"""Fenced code blocks of a Markdown page."""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)``` *$",
    re.MULTILINE | re.DOTALL,
)
NOT_RUN = re.compile(r"<!-- not run: \S.* -->\s*\Z")
COMMAND_ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "2>"}


@dataclass(frozen=True)
class Block:
    """One code block: `line` is that of its first code, from 1; `runs` is False if a comment above says why not."""

    language: str
    line: int
    code: str
    runs: bool


def blocks(text: str) -> list[Block]:
    """Return the code blocks of a page in order."""
    return [
        Block(
            match["language"],
            text.count("\n", 0, match.start("code")) + 1,
            textwrap.dedent(match["code"]),
            not NOT_RUN.search(text, 0, match.start()),
        )
        for match in FENCE.finditer(text)
    ]


def page_program(path: Path) -> str:
    """Return the page's Python blocks as one program whose line numbers are those of the page."""
    lines: list[str] = []
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.language == "python" and block.runs:
            lines += [""] * (block.line - 1 - len(lines))
            lines += block.code.splitlines()
    return "\n".join(lines) + "\n" if lines else ""


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the arguments of each `stepscope` command in a shell block."""
    for line in block.code.replace("\\\n", " ").splitlines():
        if block.language == "console" and not line.startswith("$ "):
            continue
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        lexer.wordchars += "…="
        yield from stepscope_calls(list(lexer))


def stepscope_calls(words: list[str]) -> Iterator[list[str]]:
    """Yield what follows `stepscope` in each simple command of a line."""
    while words:
        end = next((index for index, word in enumerate(words) if word in COMMAND_ENDS), len(words))
        if words[:1] == ["stepscope"]:
            yield words[1:end]
        words = words[end + 1 :]
