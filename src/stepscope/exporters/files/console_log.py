"""What the ranks of a run printed, as text: time, rank, step and the line."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.core.console_text import for_terminal
from stepscope.core.errors import StepscopeError
from stepscope.store.console import ConsoleQuery

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

    from stepscope.core.console_line import ConsoleLine
    from stepscope.exporters.files.selection import ExportedMetric
    from stepscope.store.reader import Past

PAGE = 20_000


def write(past: Past, metrics: Sequence[ExportedMetric], stream: BinaryIO) -> None:
    """Write all lines in the order of time, without colours; the choice of metrics has no meaning here."""
    del metrics
    text = io.TextIOWrapper(stream, encoding="utf-8", errors="replace", newline="\n", write_through=True)
    query, is_empty = ConsoleQuery(limit=PAGE), True
    waiting: dict[tuple[str, int, int, int], ConsoleLine] = {}
    while True:
        answer = past.console(query)
        for line in answer.lines:
            is_empty = False
            key = (line.node, line.attempt, line.rank, line.number)
            waiting.pop(key, None)
            if line.is_open:  # the next page may have its end
                waiting[key] = line
            else:
                text.write(_shown(line))
        if not answer.more:
            break
        query = replace(query, after=answer.cursor)
    text.writelines(map(_shown, waiting.values()))
    text.detach()
    if is_empty:
        remedy = "start the training with `stepscope run`, or set recorder.console to on"
        raise StepscopeError(f"export the console of run {past.id}", "no lines were kept", remedy)


def _shown(line: ConsoleLine) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(line.time))
    step = "" if line.step is None else f" step {line.step}"
    return f"{stamp} rank {line.rank}{step} | {for_terminal(line.text, in_colour=False)}\n"
