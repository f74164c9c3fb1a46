"""The consoles of a drawn run: progress, warnings, colours, hostile lines, and the end of one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import failure_texts as texts
from stepscope.core.console_line import ConsoleLine
from stepscope.store.console_segments import ConsoleWriterName, encode_record, segment_path

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

HOSTILE = (
    "<img src=x onerror=window.hacked=1><script>window.hacked=2</script>",
    "\x1b[31mred\x1b[0m plain \x1b[1;32mbold green\x1b[0m \x1b]0;title\x07 \x1b[2Jcleared",
    "x" * 16_384,
    "\u202egnp.exe\u202c and \u0007 bell",
)


def write_console(path: Path, lines: Iterable[ConsoleLine]) -> None:
    """Write lines into the folder of a run, one segment for each rank."""
    found: dict[ConsoleWriterName, list[ConsoleLine]] = {}
    for line in lines:
        found.setdefault(ConsoleWriterName(line.node, line.attempt, line.rank), []).append(line)
    for who, own in found.items():
        segment = segment_path(path, who, 0)
        segment.parent.mkdir(parents=True, exist_ok=True)
        segment.write_bytes(b"".join(encode_record(line) for line in own))


def printed(
    begins: float, step_seconds: float, steps: int, ranks: int, node: str, guilty: int = 0
) -> list[ConsoleLine]:
    """Return what some ranks print in so many steps; one of them ends with an exception, the others lose it.

    Args:
        begins: time of the first step, seconds since 1970 UTC.
        step_seconds: duration of a step.
        steps: steps of each rank.
        ranks: number of ranks, on one node.
        node: name of the node.
        guilty: the rank that fails.
    """
    found = []
    for rank in range(ranks):
        rows = [(begins - 1, "err", texts.WARNINGS[rank % len(texts.WARNINGS)])]
        for step in range(steps):
            when = begins + (step + 1) * step_seconds
            rows.append((when, "out", f"\x1b[2mstep\x1b[0m {step} | loss \x1b[32m{3 / (1 + step / 50):.4f}\x1b[0m"))
        rows += [(begins + 2, "out", text) for text in HOSTILE]
        ended = begins + steps * step_seconds
        lines = texts.chained("KeyError: 'tokens'", "RuntimeError: cannot make batch 17") if rank == guilty else None
        rows += [(ended + (0.1 if lines else 0.4), "err", text) for text in lines or texts.gloo_closed()]
        rows.sort(key=lambda row: row[0])
        found += [ConsoleLine(time, rank, 0, node, at, stream, text) for at, (time, stream, text) in enumerate(rows)]
    return found
