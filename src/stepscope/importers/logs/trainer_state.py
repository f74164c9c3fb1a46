"""Transformers' `trainer_state.json`: the Trainer's log, repeated in every checkpoint."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stepscope.importers.logs.jsonl import objects
from stepscope.importers.rows import add_rows
from stepscope.importers.run_builder import ImportFormat, RunBuilder
from stepscope.importers.source import FileHead, document, unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.importers.imported import Imported

HISTORY = "log_history"


def recognises(head: FileHead) -> bool:
    """Return whether a file is a trainer's state."""
    return head.data.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{") and b'"log_history"' in head.data


def fill(path: str, run: RunBuilder) -> None:
    """Read the Trainer's log, which has no times; the rest of its state are facts."""
    state = document(path)
    history = state.get(HISTORY) if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise unreadable(path, "its log_history is no list", "give the trainer_state.json of a checkpoint")
    add_rows(run, objects(history, run, "entries of the log that are no objects, left out"))
    run.facts |= {name: value for name, value in state.items() if name != HISTORY}


def folder_of(path: str) -> str:
    """Return the folder of the run that a state belongs to, which may hold many checkpoints."""
    folder = os.path.dirname(path)
    return os.path.dirname(folder) if os.path.basename(folder).startswith("checkpoint-") else folder


def furthest(found: Sequence[Imported]) -> list[Imported]:
    """Return one state of each run: every checkpoint of a run repeats the log of those before it."""
    best: dict[tuple[str, str], Imported] = {}
    for each in found:
        run = folder_of(each.path), os.path.basename(each.path)
        if run not in best or _progress(each) >= _progress(best[run]):
            best[run] = each
    return list(best.values())


def _progress(run: Imported) -> float:
    step: Any = run.facts.get("global_step")
    return float(step) if isinstance(step, (int, float)) else -1.0


FORMAT = ImportFormat(
    "trainer_state",
    "Transformers' trainer_state.json",
    recognises,
    fill,
    unite=furthest,
    part_of=folder_of,
    repeats=True,
)
