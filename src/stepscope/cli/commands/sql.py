"""Query all runs with SQL.

Views: points (run, project, name, rank, attempt, seq, step, time, value, ns), runs (run, project, name, state, cause,
created, duration, step, path, config) and events (run, project, time, kind, rank, attempt, step, data). Times are UTC,
durations are seconds. One SELECT is allowed, and nothing is written: see docs/reference/sql.md.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import FINE, add_shared
from stepscope.cli.named_run import say
from stepscope.cli.text.progress import progress
from stepscope.cli.text.table import Column, table
from stepscope.cli.text.terminal import Paint, columns
from stepscope.core.numbers import format_count, format_items
from stepscope.core.strict_json import flagged
from stepscope.core.terminal_text import plain, plain_lines

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from stepscope.store.sql import QueryResult

SHOWN = 1000
"""Most rows of a table; --json and --csv print all."""
NARROWEST = 12
UNLIMITED = 1 << 30
NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UBIGINT", "UINTEGER", "DOUBLE", "FLOAT", "DECIMAL")


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("query", metavar="SELECT", help="one SELECT, DESCRIBE, SUMMARIZE or EXPLAIN, in DuckDB's SQL")
    add_shared(parser, "dir")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a list of objects, as strict JSON")
    form.add_argument("--csv", action="store_true", help="print CSV")
    add_shared(parser, "quiet")


def run(options: argparse.Namespace) -> int:
    """Run the query and print its answer."""
    from stepscope.store.sql import connect, mentioned

    with contextlib.ExitStack() as stack:
        with progress("opening the runs", options=options):
            database = stack.enter_context(connect(options.dir, mentioned(options.query)))
        for problem in database.problems:
            say(problem)
        with progress("querying", options=options):
            answer = database.query(options.query)
        (_print_json if options.json else _print_csv if options.csv else _print_table)(answer)
    return FINE


def plain_value(value: Any) -> Any:
    """Return a value of DuckDB as JSON has it: times as ISO 8601 in UTC, spans in seconds, bytes in hexadecimal."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds") + "Z"
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value / timedelta(seconds=1)
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def row_object(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    """Return a row as an object of strict JSON; "nonfinite" names the values that JSON has not, which are null."""
    found, flags = flagged({name: plain_value(value) for name, value in zip(names, row, strict=True)})
    told = {_dotted(flag["at"]): flag["value"] for flag in flags}
    return {**found, _free("nonfinite", names): told} if told else found


def _dotted(pointer: str) -> str:
    return pointer[1:].replace("/", ".").replace("~1", "/").replace("~0", "~")


def _free(word: str, taken: Sequence[str]) -> str:
    return word if word not in taken else _free(f"{word}_", taken)


def _number(value: Decimal) -> float | str:
    """Return a decimal as a float if that is exact, else as text."""
    number = float(value)
    return number if Decimal(repr(number)) == value else str(value)


def _print_json(answer: QueryResult) -> None:
    opening = "["
    for row in answer.rows:
        print(opening, json.dumps(row_object(answer.columns, row), allow_nan=False), sep="\n", end="")
        opening = ","
    print("\n]" if opening == "," else "[]")


def _print_csv(answer: QueryResult) -> None:
    from stepscope.exporters.files.csv import text_cell

    print(",".join(map(text_cell, answer.columns)))
    for row in answer.rows:
        values = (json.dumps(value) if isinstance(value, (dict, list)) else value for value in map(plain_value, row))
        cells = (text_cell(value) if isinstance(value, str) else _cell(value) for value in values)
        print(",".join(cells))


def _cell(value: Any) -> str:
    return "" if value is None else repr(value) if isinstance(value, float) else str(value).lower()


def _print_table(answer: QueryResult) -> None:
    shown = list(itertools.islice(answer.rows, SHOWN))
    total = len(shown) + sum(1 for _ in answer.rows)
    kinds = zip(answer.columns, answer.types, strict=True)
    titles = [Column(plain(name), right=kind.startswith(NUMBERS), narrowest=NARROWEST) for name, kind in kinds]
    width = columns() if sys.stdout.isatty() else UNLIMITED
    rows = [[_shown(value) for value in row] for row in shown]
    if rows and answer.columns[0] == "explain_key":
        print("\n".join(plain_lines(str(row[1])) for row in shown))
        return
    paint = Paint.of()
    print("\n".join(table(titles, rows, width, paint) if rows else ["  ".join(title.title for title in titles)]))
    more = f", the first {format_count(SHOWN)} shown; --csv prints all" if total > SHOWN else ""
    print(paint(f"({format_items(total, 'row')}{more})", "dim"))


def _shown(value: Any) -> str:
    """Return a cell of the table; NULL and an empty text differ."""
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        return value.isoformat(" ", "microseconds")
    text = plain_value(value)
    return plain(json.dumps(text) if isinstance(text, (dict, list)) else text) or "''"
