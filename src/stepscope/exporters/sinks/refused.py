"""Rows that a sink refuses: who is at fault, and the file in which they are kept with the reason."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from stepscope.core.line_file import append_lines
from stepscope.core.strict_json import strict, word
from stepscope.exporters.sinks.sink import SinkDeniesError
from stepscope.store.sinks import make_folder, state_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.exporters.sinks.sink import Receipt, SinkBatch
    from stepscope.store.layout import RunFolder
    from stepscope.store.sinks import SinkState

MOST_SUSPECTS = 20
"""Rows refused one after another, without one that is taken, after which the fault is the sink's and not the rows'."""
MOST_BYTES = 16 << 20
"""Bytes of the file of refused rows; further ones are only counted."""


class RefusedRows:
    """The rows of the current portion that the sink refused."""

    def __init__(
        self,
        folder: RunFolder,
        state: SinkState,
        problem: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Start with none; `problem` gets what cannot be written."""
        self._folder, self._state, self._problem, self._clock = folder, state, problem, clock
        self._suspects: list[tuple[SinkBatch, str]] = []
        self._count = 0

    def suspect(self, batch: SinkBatch, why: str) -> None:
        """Take a row that cannot be divided; it is set aside if the sink takes others.

        Raises SinkDeniesError if it has taken none for too long: `returned` then has all of them.
        """
        self._suspects.append((batch, why))
        if len(self._suspects) >= MOST_SUSPECTS:
            raise SinkDeniesError(f"every row is refused: {why}")

    def returned(self) -> list[SinkBatch]:
        """Return the suspects, and forget them: they are sent again."""
        suspects, self._suspects = self._suspects, []
        return [batch for batch, _ in suspects]

    def set_aside(self) -> None:
        """Give up the suspects: the sink has taken other rows, so they are at fault."""
        suspects, self._suspects = self._suspects, []
        rows = [{**row._asdict(), "why": why, "refused": self._clock()} for one, why in suspects for row in one.rows()]
        self._count += len({(row["rank"], row["attempt"], row["seq"]) for row in rows})
        self._write(rows)

    def left_out(self, batch: SinkBatch, receipt: Receipt) -> None:
        """Note the points of a batch that the sink left out without saying which."""
        if receipt.refused:
            self._count += min(receipt.refused, len(batch.starts()) - 1)
            self._write([{"points": receipt.refused, "why": receipt.why, "refused": self._clock()}])

    def counted(self) -> int:
        """Return how many rows were refused since the last call."""
        count, self._count = self._count, 0
        return count

    def _write(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        path = state_path(self._folder, self._state.key, self._state.node).with_suffix(".refused.jsonl")
        lines = b"".join(json.dumps(strict(row, word)).encode() + b"\n" for row in rows)
        try:
            make_folder(self._folder, self._state.key)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(descriptor).st_size + len(lines) <= MOST_BYTES:
                    append_lines(descriptor, lines)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._problem(f"cannot keep the rows that {self._state.name} refused: {error}; they are counted")
