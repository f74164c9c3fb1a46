"""The feed for Prometheus: a page of the newest values and step durations of a run, served by its watcher."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.core import vocabulary
from stepscope.core.errors import StepscopeError
from stepscope.core.feed import Feed, Subject
from stepscope.core.records import NO_STEP, RECORD, SCHEMA_PAIRS, heads, pair_values, row_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from stepscope.core.columns import RowSchema, SchemaTable
    from stepscope.core.vocabulary import Metric
    from stepscope.exporters.prometheus.board import Board
    from stepscope.exporters.prometheus.server import Endpoint

STEP_SECONDS = "step_seconds"
_DURATION = struct.Struct("<q")
_FLOAT = struct.Struct("<d")


class NewValues(NamedTuple):
    """The contents of new rows of a rank."""

    values: dict[str, float]
    """The newest value of each metric; durations in seconds."""
    steps: int
    """Steps that ended."""
    step_seconds: list[float]
    """How long each of them took."""


class RankReader:
    """Reads the rows of one rank.

    In a run that never calls `step()`, steps are counted by the step numbers of its rows, and a duration that the
    program logs itself, such as `batch_time`, is used as that of the step.
    """

    def __init__(self) -> None:
        self._last_step: int | None = None
        self._is_timed = False
        self._timed: dict[int, tuple[bool, tuple[int, struct.Struct] | None]] = {}

    def read(self, pieces: Iterable[bytes], table: SchemaTable, *, checked: bool = False) -> NewValues:
        """Return the values of complete records; rows whose schema is not in `table` yet are left out."""
        newest: dict[int, tuple[bytes, int, RowSchema]] = {}
        latest: dict[str, float] = {}
        durations: list[float] = []
        steps = 0
        for data in pieces:
            for offset, _, number, _, _, step in heads(data):
                if number == SCHEMA_PAIRS:
                    values = pair_values(data, offset, table.names, checked=checked)
                    latest.update(values)
                    if STEP_SECONDS in values:
                        self._prefer_recorded(durations)
                        durations.append(values[STEP_SECONDS])
                    steps += self._advance(step)
                    continue
                schema = table.schemas.get(number)
                if schema is None or len(schema.kinds) != len(schema.names):
                    continue
                newest.pop(number, None)
                newest[number] = (data, offset, schema)
                if not self._measure(data, offset, schema, durations):
                    steps += self._advance(step)
        for data, offset, schema in newest.values():
            latest.update(row_values(data, offset, schema))
        return NewValues(latest, len(durations) if self._is_timed else steps, durations)

    def _measure(self, data: bytes, offset: int, schema: RowSchema, found: list[float]) -> bool:
        """Add the duration of a step that a row holds; return whether the recorder has timed it."""
        if schema.id not in self._timed:
            self._timed[schema.id] = _time_column(schema)
        is_ours, column = self._timed[schema.id]
        if is_ours:
            self._prefer_recorded(found)
        if column is not None and is_ours == self._is_timed:
            place, layout = column
            (value,) = layout.unpack_from(data, offset + place)
            found.append(value / 1e9 if layout is _DURATION else value)
        return is_ours

    def _prefer_recorded(self, found: list[float]) -> None:
        """Rely on the recorder's own durations from the first one on."""
        if not self._is_timed:
            self._is_timed = True
            found.clear()

    def _advance(self, step: int) -> int:
        """Return how many steps a row is ahead of the previous one; 0 if it goes back or has no step."""
        if step == NO_STEP:
            return 0
        before, self._last_step = self._last_step, step
        return 1 if before is None else max(0, step - before)


def _time_column(schema: RowSchema) -> tuple[bool, tuple[int, struct.Struct] | None]:
    """Return whether the recorder wrote the row at the end of a step, and where its duration is in a record."""
    is_ours = STEP_SECONDS in schema.names
    for index, name in enumerate(schema.names):
        if name == STEP_SECONDS or (not is_ours and vocabulary.canonical(name) == STEP_SECONDS):
            layout = _DURATION if schema.kinds[index] == "q" else _FLOAT
            return is_ours, (RECORD.size + 8 * index, layout)
    return is_ours, None


SECTION = "exporters.prometheus."


class TargetsFile:
    """Tells Prometheus where to scrape: a `file_sd` file that is written atomically and removed with the endpoint."""

    def __init__(self, path: Path, target: str, facts: Mapping[str, str] | None = None, *, mode: int = 0o600) -> None:
        """Write the file, in place of one that a dead process may have left; make its folder if it is missing.

        The facts are labels for relabelling, `__meta_stepscope_<name>`, which Prometheus drops after that. It often
        runs as its own user and then needs the mode 0o644.

        Raises:
            OSError: it cannot be written.
        """
        self.path = path
        labels = {f"__meta_stepscope_{name}": value for name, value in (facts or {}).items()}
        self._text = json.dumps([{"targets": [target], "labels": labels}]) + "\n"
        path.parent.mkdir(mode=0o755 if mode & 0o044 else 0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(self._text)
                os.fchmod(file.fileno(), mode)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the file, unless another endpoint has written its own there. May be called again."""
        with contextlib.suppress(OSError):  # already gone
            if self.path.read_text(encoding="utf-8") == self._text:
                self.path.unlink()


class PageFeed(Feed):
    """Fills a board, and serves it as a page."""

    def __init__(self, subject: Subject, board: Board, endpoint: Endpoint, targets: TargetsFile | None = None) -> None:
        self._subject, self.board, self.endpoint, self._targets = subject, board, endpoint, targets
        self._rows: dict[int, RankReader] = {}

    def rows(self, rank: int, pieces: Iterable[bytes], table: SchemaTable, *, checked: bool = False) -> None:
        """Take drained records of a rank."""
        new = self._rows.setdefault(rank, RankReader()).read(pieces, table, checked=checked)
        self.board.update(self._subject.run, rank, self._subject.project, *new)

    def sample(self, rank: int, values: Mapping[str, float]) -> None:
        """Take a row that the watcher made itself; its rank is below 0."""
        self.board.update(self._subject.run, rank, self._subject.project, values)

    def end(self, rank: int) -> None:
        """Remove a rank from the page."""
        self._rows.pop(rank, None)
        self.board.forget(self._subject.run, rank)

    def descriptors(self) -> Mapping[int, int]:
        """Return the listening socket and the open connections."""
        return self.endpoint.descriptors()

    def serve(self) -> None:
        """Answer the clients that are ready."""
        self.endpoint.poll()

    def close(self) -> None:
        """Remove the targets file and stop serving. May be called again."""
        if self._targets is not None:
            self._targets.remove()
        self.endpoint.close()


def open_feed(
    settings: Mapping[str, Any], subject: Subject, metrics: Sequence[Metric], note: Callable[[str], None]
) -> PageFeed | None:
    """Return the feed that `exporters.prometheus` in the settings turns on; None if it is off or has no port.

    `metrics` are those that the samplers declare; `note` reports problems, and the port.
    """
    if not settings.get(f"{SECTION}enabled"):
        return None
    from stepscope.core.access import is_loopback, kept_token
    from stepscope.exporters.prometheus.board import LIMIT, Board
    from stepscope.exporters.prometheus.server import Endpoint

    board = Board(metrics, limit=settings.get(f"{SECTION}max_series", LIMIT))
    host = settings.get(f"{SECTION}host", "127.0.0.1")
    is_guarded = settings.get(f"{SECTION}token", False) or not is_loopback(host)
    try:
        token = kept_token(subject.folder / f"prometheus-{subject.node}.token") if is_guarded else None
        endpoint = Endpoint(board.page, host=host, port=settings.get(f"{SECTION}port", 8000), token=token)
    except (StepscopeError, OSError) as error:
        note(str(error))
        return None
    note(f"metrics for Prometheus are on http://{endpoint.target}/metrics")
    return PageFeed(subject, board, endpoint, _targets(settings, subject, endpoint, note))


def _targets(
    settings: Mapping[str, Any], subject: Subject, endpoint: Endpoint, note: Callable[[str], None]
) -> TargetsFile | None:
    """Write the targets file: into the configured folder, readable by others, else into the run."""
    named = settings.get(f"{SECTION}targets")
    path = subject.folder / f"prometheus-{subject.node}.json"
    if named:
        path = Path(named) / f"{subject.project}-{subject.run}-{subject.node}.json".replace("/", "_")
    facts = {"run": subject.run, "project": subject.project, "node": subject.node}
    try:
        return TargetsFile(path, endpoint.target, facts, mode=0o644 if named else 0o600)
    except OSError as error:
        note(f"cannot write {path}: {error}; name {endpoint.target} in Prometheus' configuration")
        return None
