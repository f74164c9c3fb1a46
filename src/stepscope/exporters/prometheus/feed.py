"""The feed for Prometheus: a page of the newest values of a run, served by its watcher."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError
from stepscope.core.feed import Feed, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from stepscope.core.columns import SchemaTable
    from stepscope.core.vocabulary import Metric
    from stepscope.exporters.prometheus.board import Board
    from stepscope.exporters.prometheus.rows import RankReader
    from stepscope.exporters.prometheus.server import Endpoint

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
        """Hold a board and the endpoint that serves it."""
        self._subject, self.board, self.endpoint, self._targets = subject, board, endpoint, targets
        self._rows: dict[int, RankReader] = {}

    def rows(self, rank: int, pieces: Iterable[bytes], table: SchemaTable, *, checked: bool = False) -> None:
        """Take drained records of a rank."""
        from stepscope.exporters.prometheus.rows import RankReader

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
