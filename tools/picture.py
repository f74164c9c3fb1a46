"""Make the terminal pictures of the docs from one real run: `python tools/picture.py [--output FOLDER] [--speed X]`.

Runs `stepscope demo` in tmux and takes the screens of `stepscope top` when all faults have occurred, of the summary of
the demo, and of `stepscope diagnose`. Each becomes an SVG of a terminal window. Blocks, lines and Braille dots are
drawn as shapes, so that the picture does not depend on a font. Each file ends with a checksum: a test refuses manual
edits.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "images"
SIZES = {"demo": (110, 36), "terminal": (120, 36), "diagnosis": (112, 40)}
"""Columns and rows of the terminal, by picture."""
TITLES = {"demo": "stepscope demo", "terminal": "stepscope top", "diagnosis": "stepscope diagnose latest"}
CELL_WIDTH, CELL_HEIGHT, PADDING, TITLE_HEIGHT = 8.4, 19, 18, 36
"""Pixels."""
TEXT, DIM, BACKGROUND, EDGE = "#e6edf3", "#8b949e", "#0d1117", "#30363d"
NORMAL = ("#6e7681", "#ff7b72", "#7ee787", "#e3b341", "#6ca4f8", "#d2a8ff", "#56d4dd", "#e6edf3")
BRIGHT = ("#8b949e", "#ffa198", "#a5f0ad", "#f2cc60", "#9cc4ff", "#e2c5ff", "#8ae6ec", "#ffffff")
"""The colours of the terminal: black, red, green, yellow, blue, magenta, cyan, white."""
ESCAPE = re.compile(r"\x1b\[([\d;]*)m")
EIGHTHS = {character: index + 1 for index, character in enumerate("▏▎▍▌▋▊▉█")}
LEVELS = {character: index + 1 for index, character in enumerate("▁▂▃▄▅▆▇")}
LINES = {
    "─": ((0, 1, 1), None),
    "━": ((0, 1, 3), None),
    "╸": ((0, 0.5, 3), None),
    "│": (None, (0, 1)),
    "╭": ((0.5, 1, 1), (0.5, 1)),
    "╮": ((0, 0.5, 1), (0.5, 1)),
    "╰": ((0.5, 1, 1), (0, 0.5)),
    "╯": ((0, 0.5, 1), (0, 0.5)),
}
"""Line characters: start, end and thickness in pixels of the horizontal stroke; start and end of the vertical one."""
BRAILLE = 0x2800
DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
"""Column and row of the dot of each bit of a Braille character."""
PHRASE = re.compile(r"\S+(?: \S+)*")
CHECKSUM = "<!-- made by tools/picture.py from a real run, never by hand: sha256 {} -->\n"
PROGRESS = re.compile(r"step [\d ]+ of [\d ]+ .*?([\d.]+) %")
PERCENT = 82
"""Progress at which the pictures are taken: all faults have occurred."""
TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class Style:
    """Colours and weight of a character."""

    color: str = TEXT
    bold: bool = False
    reverse: bool = False

    def changed(self, code: int) -> Style:
        """Return the style after an escape code."""
        if code == 0:
            return Style()
        if code in {1, 7}:
            return Style(self.color, self.bold or code == 1, self.reverse or code == 7)
        colors = {
            2: DIM,
            39: TEXT,
            **{30 + i: c for i, c in enumerate(NORMAL)},
            **{90 + i: c for i, c in enumerate(BRIGHT)},
        }
        return Style(colors.get(code, self.color), self.bold, self.reverse)


Cell = tuple[str, Style]


def parse(text: str) -> list[list[Cell]]:
    """Return the cells of a captured screen, row by row; styles continue on the next row as tmux writes them."""
    rows, style = [], Style()
    for line in text.rstrip("\n").split("\n"):
        cells: list[Cell] = []
        for index, part in enumerate(ESCAPE.split(line)):
            if index % 2:
                for code in part.split(";"):
                    style = style.changed(int(code or 0))
            else:
                cells += [(character, style) for character in part]
        rows.append(cells)
    return rows


class Terminal:
    """A private tmux server with one window per command."""

    def __init__(self, folder: Path) -> None:
        """Prepare the server; runs and sockets go to the folder."""
        self._socket, self._folder = str(folder / "tmux"), folder

    def run(self, name: str, words: list[str]) -> None:
        """Start a `stepscope` command in a window of its own that stays open."""
        columns, rows = SIZES[name]
        folders = {"STEPSCOPE_DIR": "runs", "STEPSCOPE_RUNTIME_DIR": "runtime", "XDG_STATE_HOME": "state"}
        path = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
        environ = [
            path,
            f"PYTHONPATH={ROOT / 'src'}",
            *(f"{key}={self._folder / name}" for key, name in folders.items()),
        ]
        command = shlex.join(["env", *environ, "stepscope", *words]) + "; sleep 600"
        self._tmux(
            "new-session", "-d", "-s", name, "-x", str(columns), "-y", str(rows), "-c", str(self._folder), command
        )

    def press(self, name: str, key: str) -> None:
        """Press a key in a window."""
        self._tmux("send-keys", "-t", name, key)

    def screen(self, name: str) -> str:
        """Return the screen of a window with its escape codes."""
        return self._tmux("capture-pane", "-p", "-e", "-t", name)

    def wait(self, name: str, ready: Callable[[str], bool]) -> str:
        """Return the screen of a window as soon as it is ready; raise SystemExit if it never is."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < end:
            shown = self.screen(name)
            if ready(ESCAPE.sub("", shown)):
                return shown
            time.sleep(0.2)
        raise SystemExit(f"cannot take the picture {name}: its screen never got ready:\n{self.screen(name)}")

    def close(self) -> None:
        """End all windows."""
        self._tmux("kill-server")

    def _tmux(self, *words: str) -> str:
        environ = {name: value for name, value in os.environ.items() if name not in {"TMUX", "NO_COLOR", "COLUMNS"}}
        command = ["tmux", "-S", self._socket, "-f", "/dev/null", *words]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout


def screens(speed: float, steps: int) -> Iterator[tuple[str, str]]:
    """Run the demo and yield the name and the screen of each picture."""

    def late(shown: str) -> bool:
        progress = PROGRESS.search(shown)
        return progress is not None and float(progress[1]) >= PERCENT

    with tempfile.TemporaryDirectory() as folder:
        terminal = Terminal(Path(folder))
        terminal.run("demo", ["demo", "--no-page", "--speed", str(speed), "--steps", str(steps)])
        try:
            terminal.wait("demo", lambda shown: bool(PROGRESS.search(shown)))
            terminal.run("terminal", ["top"])
            yield "terminal", terminal.wait("terminal", late)
            terminal.wait("demo", lambda shown: "finished" in shown)
            terminal.press("demo", "q")
            yield "demo", terminal.wait("demo", lambda shown: "recorded" in shown)
            terminal.run("diagnosis", ["diagnose", "latest"])
            yield "diagnosis", terminal.wait("diagnosis", lambda shown: "What changed" in shown)
        finally:
            terminal.close()


def draw(rows: list[list[Cell]], columns: int, title: str) -> str:
    """Return a screen as the SVG of a terminal window."""
    used = max(index for index, row in enumerate(rows) if any(cell[0] != " " for cell in row)) + 1
    width, height = columns * CELL_WIDTH + 2 * PADDING, used * CELL_HEIGHT + TITLE_HEIGHT + 1.5 * PADDING
    top = TITLE_HEIGHT + PADDING / 2
    body = "".join(_row(row, top + index * CELL_HEIGHT) for index, row in enumerate(rows[:used]))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" \
height="{height:.0f}" role="img" aria-labelledby="t">
<title id="t">{escape(title)} in a terminal</title>
<rect x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="10" fill="{BACKGROUND}" stroke="{EDGE}"/>
<path d="M.5 {TITLE_HEIGHT}H{width - 0.5:.1f}" stroke="{EDGE}"/>
<g fill="{EDGE}"><circle cx="22" cy="18" r="6"/><circle cx="42" cy="18" r="6"/><circle cx="62" cy="18" r="6"/></g>
<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace" \
font-size="14" xml:space="preserve">
<text x="{width / 2:.0f}" y="23" text-anchor="middle" fill="{DIM}" font-size="13">{escape(title)}</text>
{body}</g>
</svg>
"""


def _row(row: list[Cell], top: float) -> str:
    """Return one row: pieces of text of one style, and one path per colour for everything drawn."""
    shapes: dict[str, str] = {}
    texts, column = "", 0
    for (style, is_drawn), group in groupby(row, key=lambda cell: (cell[1], bool(_shape(cell[0], 0, 0)))):
        piece = "".join(character for character, _ in group)
        left = PADDING + column * CELL_WIDTH
        if style.reverse:
            shapes[style.color] = shapes.get(style.color, "") + _box(left, top, len(piece) * CELL_WIDTH, CELL_HEIGHT)
        if is_drawn:
            paths = "".join(_shape(character, left + index * CELL_WIDTH, top) for index, character in enumerate(piece))
            shapes[style.color] = shapes.get(style.color, "") + paths
        else:
            texts += _text(piece, left, style, top)
        column += len(piece)
    return "".join(f'<path fill="{color}" d="{path}"/>\n' for color, path in shapes.items()) + texts


def _shape(character: str, left: float, top: float) -> str:
    """Return the path of a block, line or Braille character; empty for a character that is set as text."""
    if character in LINES:
        return "".join(_strokes(character, left, top))
    if character in EIGHTHS:
        return _box(left, top + 3, EIGHTHS[character] / 8 * CELL_WIDTH, CELL_HEIGHT - 6)
    if character in LEVELS:
        high = LEVELS[character] / 8 * (CELL_HEIGHT - 6)
        return _box(left, top + CELL_HEIGHT - 3 - high, CELL_WIDTH, high)
    bits = ord(character) - BRAILLE
    if 0 < bits < 1 << len(DOTS):
        dots = [dot for bit, dot in enumerate(DOTS) if bits >> bit & 1]
        return "".join(
            _box(left + (x + 0.2) * CELL_WIDTH / 2, top + (y + 0.2) * CELL_HEIGHT / 4, 2.6, 2.6) for x, y in dots
        )
    return ""


def _strokes(character: str, left: float, top: float) -> Iterator[str]:
    across, down = LINES[character]
    middle = left + CELL_WIDTH / 2 - 0.5
    if across:
        start, end, thick = across
        yield _box(left + start * CELL_WIDTH, top + (CELL_HEIGHT - thick) / 2, (end - start) * CELL_WIDTH, thick)
    if down:
        yield _box(middle, top + down[0] * CELL_HEIGHT, 1, (down[1] - down[0]) * CELL_HEIGHT)


def _box(left: float, top: float, width: float, height: float) -> str:
    return f"M{left:.1f} {top:.1f}h{width:.1f}v{height:.1f}h{-width:.1f}z"


def _text(text: str, left: float, style: Style, top: float) -> str:
    """Return text exactly as wide as its columns, in any font; browsers collapse spaces, so each phrase is placed."""
    weight = ' font-weight="700"' if style.bold else ""
    color = BACKGROUND if style.reverse else style.color
    return "".join(
        f'<text x="{left + part.start() * CELL_WIDTH:.1f}" y="{top + 14:.1f}"'
        f' textLength="{len(part[0]) * CELL_WIDTH:.1f}" fill="{color}"{weight}>{escape(part[0])}</text>\n'
        for part in PHRASE.finditer(text)
    )


def signed(content: str) -> str:
    """Return the picture followed by its checksum."""
    return content + CHECKSUM.format(hashlib.sha256(content.encode()).hexdigest())


def is_untouched(content: str) -> bool:
    """Say whether a picture is as this tool wrote it."""
    body, mark, _ = content.rpartition(CHECKSUM.partition("{}")[0])
    return bool(mark) and signed(body) == content


def main(argv: list[str]) -> int:
    """Make the pictures and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=PICTURES, help="folder to write to (default: %(default)s)")
    parser.add_argument("--speed", type=float, default=1.0, help="as for stepscope demo (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="as for stepscope demo (default: %(default)s)")
    options = parser.parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    for name, shown in screens(options.speed, options.steps):
        content = signed(draw(parse(shown), SIZES[name][0], TITLES[name]))
        (options.output / f"{name}.svg").write_text(content, encoding="utf-8")
        print(f"{options.output / name}.svg: {len(content.encode())} bytes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
