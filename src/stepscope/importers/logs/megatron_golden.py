"""Reference values of Megatron-LM's functional tests: `{"lm loss": {"start_step": 1, "values": {"1": 10.6, …}}}`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.importers.run_builder import ImportFormat, RunBuilder
from stepscope.importers.source import FileHead, document
from stepscope.importers.words import number, whole

if TYPE_CHECKING:
    from collections.abc import Iterator


WORDS = (b'"start_step"', b'"step_interval"', b'"values"')


def recognises(head: FileHead) -> bool:
    """Return whether a JSON file holds values by step, from a first step at an interval."""
    return head.data.lstrip().startswith(b"{") and all(word in head.data for word in WORDS)


def fill(path: str, run: RunBuilder) -> None:
    """Read the values; a step at which every metric is "nan" was not recorded, and is left out."""
    content = document(path)
    content = content if isinstance(content, dict) else {}
    tables = {name: dict(_values(table)) for name, table in content.items()}
    recorded = {step for table in tables.values() for step, value in table.items() if value is not None}
    for name, table in tables.items():
        for step, value in table.items():
            if step in recorded:
                run.add(name, float("nan") if value is None else value, step)
    run.facts = {name: value for name, value in content.items() if number(value) is not None}


def _values(table: Any) -> Iterator[tuple[int, float | None]]:
    """Yield steps and values; None for the text "nan", which marks steps that were not logged."""
    found = table.get("values") if isinstance(table, dict) else None
    if isinstance(found, list):
        first, interval = whole(table.get("start_step")) or 0, whole(table.get("step_interval")) or 1
        found = {str(first + interval * index): value for index, value in enumerate(found)}
    for key, value in found.items() if isinstance(found, dict) else ():
        step = int(key) if key.isdecimal() and len(key) < 19 else None
        figure = None if isinstance(value, str) else number(value)
        if step is not None and (figure is not None or value == "nan"):
            yield step, figure


FORMAT = ImportFormat(
    "megatron_golden",
    "Megatron's reference values of a test",
    recognises,
    fill,
    ("it holds no values by step", "give the golden_values file of a test"),
)
