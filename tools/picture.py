"""Make docs/images/demo.svg: `python tools/picture.py [--output FILE] [--speed X]`.

Runs `stepscope demo` in a pseudo-terminal, takes the screen of the moment when most has happened and the training still
runs, and writes it as the picture of a terminal window. Blocks and lines are drawn, not set, so that no font can tear
them apart. The picture ends with a checksum of itself: a test refuses one that was edited by hand.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "demo.svg"
COLUMNS, ROWS = 96, 28
WIDE, HIGH, PAD, BAR = 8.4, 19, 18, 36
"""Pixels: of a character, around the screen, of the window's title."""
COLOURS = {31: "#ff7b72", 32: "#7ee787", 33: "#e3b341", 34: "#6ca4f8", 36: "#56d4dd"}
TEXT, DIM, GROUND, EDGE = "#e6edf3", "#8b949e", "#0d1117", "#30363d"
TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\r|\n|([^\x1b\r\n]+)")
FRAME_END = "\x1b[?2026l"
EIGHTHS = {character: place + 1 for place, character in enumerate("▏▎▍▌▋▊▉█")}
LEVELS = {character: place + 1 for place, character in enumerate("▁▂▃▄▅▆▇")}
STROKES = {"─": (0.0, 1.0, 1.0), "━": (0.0, 1.0, 3.0), "╸": (0.0, 0.5, 3.0)}
"""Characters that are lines: start and end as shares of the width, thickness in pixels."""
CHECKSUM = "<!-- made by tools/picture.py from a real run, never by hand: sha256 {} -->\n"
LEAVE = b"Ctrl-C to leave"
SECONDS = 300
MOMENT = 82
"""Percent of the steps: everything planted has happened, the last evaluation only just."""


@dataclass(frozen=True)
class Style:
    """How a character looks."""

    colour: str = TEXT
    bold: bool = False


@dataclass
class Screen:
    """As much of a terminal as the demo uses."""

    rows: int = ROWS
    cells: list[dict[int, tuple[str, Style]]] = field(default_factory=list)
    row: int = 0
    column: int = 0
    style: Style = field(default_factory=Style)

    def __post_init__(self) -> None:
        """Start empty."""
        self.cells = [{} for _ in range(self.rows)]

    def feed(self, text: str) -> None:
        """Take in what a program wrote."""
        for token in TOKEN.finditer(text):
            if token[2]:
                self._control(token[1], token[2])
            elif token[0] == "\r":
                self.column = 0
            elif token[0] == "\n":
                self._line_feed()
            else:
                self._write(token[3])

    def text(self) -> str:
        """Return the characters on the screen."""
        lines = ("".join(row.get(place, (" ",))[0] for place in range(max(row, default=-1) + 1)) for row in self.cells)
        return "\n".join(lines)

    def _line_feed(self) -> None:
        if self.row < self.rows - 1:
            self.row += 1
        else:
            self.cells = [*self.cells[1:], {}]

    def _write(self, text: str) -> None:
        for character in text:
            self.cells[self.row][self.column] = (character, self.style)
            self.column += 1

    def _control(self, value: str, command: str) -> None:
        if command == "m":
            self._dress([int(number or 0) for number in value.split(";")])
        elif command == "A":
            self.row = max(self.row - int(value or 1), 0)
        elif command == "K":
            kept = {place: cell for place, cell in self.cells[self.row].items() if place < self.column}
            self.cells[self.row] = kept
        elif command == "H":
            self.row = self.column = 0
        elif command == "J":
            first = 0 if value == "2" else self.row + 1
            self.cells[first:] = [{} for _ in self.cells[first:]]

    def _dress(self, codes: list[int]) -> None:
        style = self.style
        for code in codes:
            if code == 0:
                style = Style()
            elif code == 1:
                style = Style(style.colour, bold=True)
            elif code == 2:
                style = Style(DIM, style.bold)
            elif code in COLOURS:
                style = Style(COLOURS[code], style.bold)
        self.style = style


def record(arguments: list[str]) -> str:
    """Run the demo in a pseudo-terminal and return what it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    program = "import sys; from stepscope.cli.main import main; sys.exit(main())"
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT / "src"), "STEPSCOPE_DIR": folder}
        environ = {name: value for name, value in environ.items() if name not in {"NO_COLOR", "COLUMNS", "LINES"}}
        command = [sys.executable, "-c", program, "demo", *arguments]
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, cwd=folder)
        os.close(theirs)
        signal.alarm(SECONDS)
        written = b""
        while LEAVE not in written:
            try:
                written += os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
        process.send_signal(signal.SIGINT)
        code = process.wait()
        os.close(ours)
        signal.alarm(0)
    if code:
        raise SystemExit(f"the demo ended with {code}:\n{written.decode(errors='replace')[-2000:]}")
    return written.decode()


def live(written: str) -> Screen:
    """Return the first screen past `MOMENT` percent of the steps; raise SystemExit if there is none."""
    screen = Screen()
    for frame in written.split(FRAME_END):
        screen.feed(frame)
        done = re.search(r"of \d+, +(\d+) %", screen.text())
        if done and int(done[1]) >= MOMENT:
            return screen
    raise SystemExit("the demo has shown no screen of its last steps")


def picture(screen: Screen) -> str:
    """Return a screen as the picture of a terminal window."""
    used = max(number for number, row in enumerate(screen.cells) if row) + 1
    width, height = COLUMNS * WIDE + 2 * PAD, used * HIGH + BAR + 1.5 * PAD
    body = "".join(_row(row, BAR + PAD / 2 + number * HIGH) for number, row in enumerate(screen.cells[:used]))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" \
height="{height:.0f}" role="img" aria-labelledby="t">
<title id="t">stepscope demo in a terminal: a live table of metrics, phases of the step, and events</title>
<rect x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="10" fill="{GROUND}" stroke="{EDGE}"/>
<path d="M.5 {BAR}H{width - 0.5:.1f}" stroke="{EDGE}"/>
<g fill="{EDGE}"><circle cx="22" cy="18" r="6"/><circle cx="42" cy="18" r="6"/><circle cx="62" cy="18" r="6"/></g>
<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace" \
font-size="14" xml:space="preserve">
<text x="{width / 2:.0f}" y="23" text-anchor="middle" fill="{DIM}" font-size="13">stepscope demo</text>
{body}</g>
</svg>
"""


def _row(row: dict[int, tuple[str, Style]], top: float) -> str:
    """Return one row: runs of text, and for each colour one path of all that is drawn."""
    shapes: dict[str, str] = {}
    texts = ""
    place = 0
    columns = sorted(row)
    while place < len(columns):
        column = columns[place]
        character, style = row[column]
        shape = _shape(character, PAD + column * WIDE, top)
        end = place + 1
        if shape:
            shapes[style.colour] = shapes.get(style.colour, "") + shape
        else:
            while end < len(columns) and row[columns[end]][1] == style and not _is_drawn(row[columns[end]][0]):
                end += 1
            texts += _text("".join(row[columns[at]][0] for at in range(place, end)), column, style, top)
        place = end
    return texts + "".join(f'<path fill="{colour}" d="{path}"/>\n' for colour, path in shapes.items())


def _is_drawn(character: str) -> bool:
    return character in EIGHTHS or character in LEVELS or character in STROKES


def _shape(character: str, left: float, top: float) -> str:
    """Return the path of a block or a line; empty for a character that is set as text."""
    if character in STROKES:
        start, end, thick = STROKES[character]
        return _box(left + start * WIDE, top + (HIGH - thick) / 2, (end - start) * WIDE, thick)
    if character in EIGHTHS:
        return _box(left, top + 3, EIGHTHS[character] / 8 * WIDE, HIGH - 6)
    if character in LEVELS:
        tall = LEVELS[character] / 8 * (HIGH - 6)
        return _box(left, top + HIGH - 3 - tall, WIDE, tall)
    return ""


def _box(left: float, top: float, wide: float, high: float) -> str:
    return f"M{left:.1f} {top:.1f}h{wide:.1f}v{high:.1f}h{-wide:.1f}z"


def _text(text: str, column: int, style: Style, top: float) -> str:
    """Return text as wide as its columns, whatever the font."""
    shown = text.rstrip()
    lead = len(shown) - len(shown.lstrip())
    shown = shown.lstrip()
    if not shown:
        return ""
    left, weight = PAD + (column + lead) * WIDE, ' font-weight="700"' if style.bold else ""
    length = len(shown) * WIDE
    return (
        f'<text x="{left:.1f}" y="{top + 14:.1f}" textLength="{length:.1f}" fill="{style.colour}"{weight}>'
        f"{escape(shown)}</text>\n"
    )


def signed(content: str) -> str:
    """Return the picture with its checksum behind it."""
    return content + CHECKSUM.format(hashlib.sha256(content.encode()).hexdigest())


def is_untouched(content: str) -> bool:
    """Say whether a picture is as this tool wrote it."""
    body, mark, _ = content.rpartition(CHECKSUM.partition("{}")[0])
    return bool(mark) and signed(body) == content


def main(argv: list[str]) -> int:
    """Make the picture and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=PICTURE, help="file to write (default: %(default)s)")
    parser.add_argument("--speed", type=float, default=1.0, help="as of stepscope demo (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="as of stepscope demo (default: %(default)s)")
    options = parser.parse_args(argv)
    written = record(["--speed", str(options.speed), "--steps", str(options.steps)])
    content = signed(picture(live(written)))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(content, encoding="utf-8")
    print(f"{options.output}: {len(content.encode())} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
