"""Reading 10 GB of consoles: 512 ranks on 64 nodes, 20 segments each. The files of all ranks are links to the same.

The figures are seconds of CPU time: the files are in memory, so a quiet machine takes as long.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from bench.figure import Figure, Options
from stepscope.core.console_line import ConsoleLine
from stepscope.store.console import ConsoleQuery, read_console
from stepscope.store.console_segments import ConsoleWriterName, encode_record, segment_path
from stepscope.store.layout import RunFolder

if TYPE_CHECKING:
    from pathlib import Path

RANKS, NODES, SEGMENTS = 512, 64, 20
LINES = 6000
"""Lines of a segment, about 1 MiB."""
START = 1_700_000_000.0
QUERIES: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("the last 20 lines of all ranks", {"last": 20}, 1.0),
    ("the last 20 lines of one rank", {"last": 20, "ranks": (17,)}, 0.2),
    ("the last 20 lines that look like errors", {"last": 20, "level": "error"}, 1.5),
    ("the first 2000 lines of a minute in the middle", {"since": START + 60_000, "until": START + 60_060}, 2.0),
    ("a word that no line of eight ranks has (160 MB)", {"last": 20, "ranks": tuple(range(8)), "pattern": "owl"}, 2.0),
)


def measure(options: Options) -> list[Figure]:
    """Return the figures."""
    folder = options.scratch / "consoles"
    segments = 3 if options.quick else SEGMENTS
    _make(folder, segments)
    size = RANKS * sum(path.stat().st_size for path in folder.glob("texts/*")) / 1e9
    figures = []
    for number, (what, query, limit) in enumerate(QUERIES):
        started = time.process_time()
        answer = read_console(RunFolder(folder), ConsoleQuery(**query))
        took = time.process_time() - started
        beside = f"{len(answer.lines)} lines of {size:.1f} GB"
        figures.append(Figure(f"console_reading_{number}", what, took, "s", limit, beside))
    return figures


def _make(folder: Path, segments: int) -> None:
    """Write each text once, and link it for every rank: rank and number are in the name of a segment alone."""
    texts = folder / "texts"
    texts.mkdir(parents=True)
    for number in range(segments):
        with (texts / str(number)).open("wb") as file:
            for line in range(number * LINES, (number + 1) * LINES):
                is_bad = line % LINES == LINES - 1
                text = f"{'RuntimeError in' if is_bad else 'loss of'} step {line}: " + "0123456789" * 8
                file.write(encode_record(ConsoleLine(START + line, 0, 0, "", line, "out", text)))
    for rank in range(RANKS):
        for number in range(segments):
            who = ConsoleWriterName(f"node{rank * NODES // RANKS}.0", 0, rank)
            path = segment_path(folder, who, number)
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(texts / str(number), path)
