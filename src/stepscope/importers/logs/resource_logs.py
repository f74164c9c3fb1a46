"""The tables `epoch_<n>.csv` in a folder of resource logs: one run, not one per epoch."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.importers.imported import Imported, ImportedSeries

if TYPE_CHECKING:
    from collections.abc import Sequence

TABLE = re.compile(r"epoch_(?P<epoch>\d+)(?P<rest>.*)\.csv(\.gz)?")
"""Name of such a file; the text after the number distinguishes the nodes of a training."""
_COLUMNS = ("step", "time", "value", "rank", "attempt")


def unite(runs: Sequence[Imported]) -> list[Imported]:
    """Return the runs of CSV files; epoch tables in one folder are joined in the order of their numbers."""
    tables: dict[tuple[str, str], list[tuple[int, Imported]]] = defaultdict(list)
    others = []
    for run in runs:
        match = TABLE.fullmatch(os.path.basename(run.path))
        if match is None:
            others.append(run)
        else:
            tables[os.path.dirname(run.path), match["rest"]].append((int(match["epoch"]), run))
    return [*others, *(_joined(sorted(some, key=lambda pair: pair[0])) for some in tables.values())]


def _joined(tables: Sequence[tuple[int, Imported]]) -> Imported:
    parts: dict[str, list[ImportedSeries]] = defaultdict(list)
    for _, table in tables:
        for name, series in table.columns.items():
            parts[name].append(series)
    columns = {
        name: ImportedSeries(name, *(np.concatenate([getattr(one, column) for one in some]) for column in _COLUMNS))
        for name, some in parts.items()
    }
    first = tables[0][1]
    notes = tuple(f"{os.path.basename(table.path)}: {note}" for _, table in tables for note in table.notes)
    facts = {**first.facts, "epochs": [epoch for epoch, _ in tables]}
    return replace(first, path=os.path.dirname(first.path), columns=columns, facts=facts, notes=notes)
