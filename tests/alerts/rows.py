"""Rows as a watcher drains them, for the tests of the engine."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.alerts.evaluation.rule_engine import Engine
from stepscope.alerts.rules.rule import Rule, rule_of
from stepscope.core.columns import RowSchema, SchemaTable
from stepscope.core.records import FIRST_SCHEMA, RECORD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.alerts.evaluation.state import Transition

SECOND = 10**9


def records(rows: Sequence[tuple[int, float, Mapping[str, float]]]) -> tuple[list[bytes], SchemaTable]:
    """Return rows of (step, seconds, values) as drained pieces, and the table behind them."""
    table = SchemaTable()
    known: dict[tuple[str, ...], int] = {}
    pieces = []
    for sequence, (step, moment, values) in enumerate(rows):
        names = tuple(values)
        number = known.setdefault(names, FIRST_SCHEMA + len(known))
        table.schemas[number] = RowSchema(number, names, "d" * len(names))
        body = struct.pack(f"<{len(names)}d", *values.values())
        head = RECORD.pack(RECORD.size + len(body), number, sequence, round(moment * SECOND), step)
        pieces.append(head + body)
    return [b"".join(pieces)], table


class Rig:
    """An engine with a clock: one step a second unless told otherwise."""

    def __init__(self, *rules: Rule | Mapping[str, Any]) -> None:
        """Begin at second 0."""
        self.notes: list[str] = []
        made = [rule if isinstance(rule, Rule) else rule_of(rule) for rule in rules]
        self.engine = Engine(made, note=self.notes.append)
        self.now = 0.0
        self.step = 0

    def log(self, rank: int = 0, **values: float) -> list[Transition]:
        """Log one row of a step, and judge it."""
        return self.log_many([values], rank)

    def log_many(self, rows: Sequence[Mapping[str, float]], rank: int = 0, seconds: float = 1.0) -> list[Transition]:
        """Log a row a step, and judge them together."""
        made = []
        for values in rows:
            made.append((self.step, self.now, values))
            self.step += 1
            self.now += seconds
        self.engine.rows(rank, *records(made))
        return self.engine.evaluate(self.nanoseconds)

    def values(self, name: str, *values: float, rank: int = 0) -> list[Transition]:
        """Log values of one metric, a step each."""
        return self.log_many([{name: value} for value in values], rank)

    def sample(self, **values: float) -> list[Transition]:
        """Sample the machine; `__` in a name stands for `/`."""
        given = {name.replace("__", "/"): value for name, value in values.items()}
        self.engine.sample(-1, given, self.nanoseconds)
        found = self.engine.evaluate(self.nanoseconds)
        self.now += 1.0
        return found

    def machine(self, count: int, **values: float | Callable[[int], float]) -> list[Transition]:
        """Sample the machine so many times, a second apart, judged ten at a time; a value may depend on the second."""
        found = []
        for at in range(count):
            given = {
                name.replace("__", "/"): float(value(at)) if callable(value) else value
                for name, value in values.items()
            }
            self.engine.sample(-1, given, self.nanoseconds)
            if at % 10 == 9 or at == count - 1:
                found += self.engine.evaluate(self.nanoseconds)
            self.now += 1.0
        return found

    def event(self, kind: str, rank: int | None = 0, **fields: Any) -> list[Transition]:
        """Let an event happen."""
        self.engine.event({"kind": kind, **fields}, rank, self.nanoseconds)
        return self.engine.evaluate(self.nanoseconds)

    def wait(self, seconds: float) -> list[Transition]:
        """Let time pass."""
        self.now += seconds
        return self.engine.evaluate(self.nanoseconds)

    @property
    def nanoseconds(self) -> int:
        """The monotonic clock."""
        return math.floor(self.now * SECOND)


def states(changes: Sequence[Transition]) -> list[tuple[str, str]]:
    """Return rule and state of each change."""
    return [(change.rule, change.state) for change in changes]


def noise(count: int, level: float, width: float, seed: int = 0) -> list[float]:
    """Return a level with noise."""
    return np.random.default_rng(seed).normal(level, width, count).tolist()
