"""Transformers' `trainer_state.json`: the Trainer's log, repeated in every checkpoint."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stepscope.importers.points import Points
from stepscope.importers.rows import Rows
from stepscope.importers.source import document, unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.importers.imported import Imported
    from stepscope.importers.source import Head

NAME = "trainer_state"
HISTORY = "log_history"


def recognises(head: Head) -> bool:
    """Return whether a file is a trainer's state."""
    return head.data.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{") and b'"log_history"' in head.data


def read(path: str) -> Imported:
    """Return the Trainer's log; `facts` has the rest of its state. It has no times."""
    state = document(path)
    history = state.get(HISTORY) if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise unreadable(path, "its log_history is no list", "give the trainer_state.json of a checkpoint")
    points = Points()
    rows = Rows(points)
    for row in history:
        if isinstance(row, dict):
            rows.add(row)
        else:
            points.note("entries of the log that are no objects, left out")
    facts = rows.finish() | {name: value for name, value in state.items() if name != HISTORY}
    return points.imported(path, NAME, facts)


def furthest(found: Sequence[Imported]) -> list[Imported]:
    """Return one state of each run: every checkpoint of a run repeats the log of those before it."""
    best: dict[str, Imported] = {}
    for each in found:
        folder = os.path.dirname(each.path)
        run = os.path.dirname(folder) if os.path.basename(folder).startswith("checkpoint-") else folder
        if run not in best or _progress(each) >= _progress(best[run]):
            best[run] = each
    return list(best.values())


def _progress(run: Imported) -> float:
    step: Any = run.facts.get("global_step")
    return float(step) if isinstance(step, (int, float)) else -1.0
