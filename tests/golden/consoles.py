"""The records of the golden segment of a console."""

from __future__ import annotations

from pathlib import Path

from stepscope.core.console_line import ConsoleLine
from stepscope.store.console_segments import ConsoleWriterName, LostLines, Record

FILE = Path(__file__).parent / "console" / "0-3-0.log"
WHO = ConsoleWriterName("gold.abc123", 0, 3)
START = 1_767_225_600.0


def _line(seconds: float, number: int, stream: str, text: str, **marks: bool) -> ConsoleLine:
    return ConsoleLine(START + seconds, 3, 0, WHO.node, number, stream, text, **marks)


RECORDS: list[tuple[Record, bool]] = [
    (_line(0.0, 0, "out", "step 1 | loss 2.5 | µ é"), False),
    (_line(0.25, 1, "err", "50%|#####     |", is_open=True), False),
    (_line(0.5, 2, "out", "\x1b[31mred\x1b[0m \\xff\ttab"), False),
    (_line(0.75, 1, "err", "100%|##########|"), True),
    (_line(1.0, 3, "", "x" * 100, is_cut=True), False),
    (LostLines(START + 2.0, 4, 12, "No space left on device"), False),
    (_line(3.0, 16, "out", "after"), False),
]
"""Each record, and whether an earlier one has its number."""
