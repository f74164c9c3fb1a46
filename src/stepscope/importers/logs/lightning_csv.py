"""CSV with a header: Lightning's `metrics.csv`, TensorBoard's download, Stepscope's own export, and similar files."""

from __future__ import annotations

import csv
import os
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError
from stepscope.importers.imported import Imported, joined
from stepscope.importers.rows import STEPS, TIMES, add_rows, place
from stepscope.importers.run_builder import ImportFormat, RunBuilder
from stepscope.importers.source import FileHead, lines, unreadable
from stepscope.importers.words import parsed, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


SEPARATORS = (",", "\t", ";")
MOST_COLUMNS = 10_000
HYPERPARAMETERS = "hparams.yaml"
EPOCH_TABLE = re.compile(r"epoch_(?P<epoch>\d+)(?P<rest>.*)\.csv(\.gz)?")
"""File of one epoch in a folder of resource logs; the text after the number distinguishes the nodes of a training."""


def recognises(head: FileHead) -> bool:
    """Return whether a text starts with a header that names a step, time or epoch, and a row of numbers."""
    first = head.first_lines(2)
    if len(first) < 2:
        return False
    names, cells = (_split(line, _separator(first[0])) for line in first)
    if len(names) < 2 or len(cells) != len(names) or any(parsed(name) is not None for name in names):
        return False
    known = dict.fromkeys(map(plain, names))
    is_log = place(known, (*STEPS, *TIMES, "epoch")) is not None
    return is_log and any(parsed(cell) is not None for cell in cells)


def fill(path: str, run: RunBuilder) -> None:
    """Read the columns; an empty cell is absent. A table with only step and `value` is named after its file."""
    texts = lines(path, run.note)
    first = next((line for line in texts if line.strip()), "")
    separator = _separator(first)
    names = [name.strip() for name in _split(first, separator)]
    if len(set(names)) < len(names) or not 2 <= len(names) <= MOST_COLUMNS:
        raise unreadable(path, "its header does not name each column once", "give a CSV with one name a column")
    if "name" not in names and {plain(name) for name in names} - {*STEPS, *TIMES} == {"value"}:
        stem = os.path.basename(path).split(".csv")[0]  # TensorBoard writes the tag into the file name
        metric = stem.rpartition("-tag-")[2].strip("-_ ") or stem
        names = [metric if plain(name) == "value" else name for name in names]
    _add_hyperparameters(os.path.join(os.path.dirname(path), HYPERPARAMETERS), run)
    add_rows(run, _rows(texts, names, separator, run))


def _add_hyperparameters(path: str, run: RunBuilder) -> None:
    """Take the configuration from the file that Lightning writes beside its table."""
    if not os.path.isfile(path):
        return
    from stepscope.core.yaml_text import read_file  # loads PyYAML

    try:
        found = read_file(Path(path)).data
    except StepscopeError as error:
        run.note(f"the configuration beside it is left out: {error}")
        return
    if found:
        run.facts["config"] = found


def _separator(line: str) -> str:
    return max(SEPARATORS, key=line.count)


def _split(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []


def _rows(texts: Iterator[str], names: Sequence[str], separator: str, run: RunBuilder) -> Iterator[dict[str, Any]]:
    rows = csv.reader(texts, delimiter=separator)
    while True:
        try:
            cells = next(rows, None)
        except csv.Error as error:
            run.note(f"rows that are no CSV ({error}), left out")
            continue
        if cells is None:
            return
        if len(cells) == len(names):
            yield {name: _value(cell, separator) for name, cell in zip(names, cells, strict=True)}
        elif cells:
            run.note("rows with another number of cells, left out")


def _value(cell: str, separator: str) -> Any:
    """Return a cell as a number if it is one; an empty cell as None. If `;` separates cells, a comma is decimal."""
    figure = parsed(cell.replace(",", ".") if separator == ";" else cell)
    return figure if figure is not None else cell.strip().removeprefix("'") or None


def table_of(path: str) -> str:
    """Return what the epoch tables of one run have in common; the path itself of any other CSV file."""
    folder, name = os.path.split(path)
    match = EPOCH_TABLE.fullmatch(name)
    return path if match is None else os.path.join(folder, f"epoch_{match['rest']}")


def join_epochs(runs: Sequence[Imported]) -> list[Imported]:
    """Return the runs of CSV files; epoch tables in one folder are one run, in the order of their numbers."""
    tables: dict[tuple[str, str], list[tuple[int, Imported]]] = defaultdict(list)
    others = []
    for run in runs:
        folder, name = os.path.split(run.path)
        match = EPOCH_TABLE.fullmatch(name)
        if match is None:
            others.append(run)
        else:
            tables[folder, match["rest"]].append((int(match["epoch"]), run))
    for (folder, _), some in tables.items():
        some.sort(key=lambda pair: pair[0])
        whole = joined([run for _, run in some])
        others.append(replace(whole, path=folder, facts={**whole.facts, "epochs": [epoch for epoch, _ in some]}))
    return others


FORMAT = ImportFormat(
    "csv",
    "CSV with a step or time, as Lightning's metrics.csv",
    recognises,
    fill,
    ("it holds no numbers", "give a CSV with a column step or time"),
    join_epochs,
    part_of=table_of,
)
