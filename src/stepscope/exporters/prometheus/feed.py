"""What a watcher hands to Prometheus: drained rows and samples in, and a wait that serves. Off, it is only the wait."""

from __future__ import annotations

import select
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from stepscope.core.columns import SchemaTable
    from stepscope.core.vocabulary import Metric
    from stepscope.exporters.prometheus.board import Board
    from stepscope.exporters.prometheus.rows import Rows
    from stepscope.exporters.prometheus.server import Endpoint
    from stepscope.exporters.prometheus.targets import TargetsFile

SECTION = "exporters.prometheus."


class Feed(Protocol):
    """Where a watcher puts what it has drained and sampled."""

    def rows(self, rank: int, pieces: Iterable[bytes], table: SchemaTable, *, checked: bool = False) -> None:
        """Take drained records of a rank."""

    def sample(self, rank: int, values: Mapping[str, float]) -> None:
        """Take a row that the watcher made itself; its rank is below 0."""

    def end(self, rank: int) -> None:
        """Take a rank off the page."""

    def wait(self, seconds: float, wake: Collection[int] = ()) -> bool:
        """Let time pass, until one of the descriptors in `wake` becomes readable; say whether one has."""
        ...

    def close(self) -> None:
        """Stop serving. May be called again."""


class NoFeed:
    """Takes nothing and serves nothing."""

    def __init__(self) -> None:
        """Wait for nothing yet."""
        self._awaited: tuple[int, ...] = ()
        self._poll = select.poll()

    def rows(self, rank: int, pieces: Iterable[bytes], table: SchemaTable, *, checked: bool = False) -> None:
        """Take nothing."""

    def sample(self, rank: int, values: Mapping[str, float]) -> None:
        """Take nothing."""

    def end(self, rank: int) -> None:
        """Do nothing."""

    def wait(self, seconds: float, wake: Collection[int] = ()) -> bool:
        """Sleep, until one of the descriptors in `wake` becomes readable; say whether one has."""
        awaited = tuple(wake)
        if awaited != self._awaited:  # rarely: 10 times a second the same ones are waited for
            self._awaited, self._poll = awaited, select.poll()
            for descriptor in awaited:
                self._poll.register(descriptor, select.POLLIN)
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def close(self) -> None:
        """Do nothing."""


class Subject(NamedTuple):
    """What is watched, as labels and file names say it."""

    run: str
    project: str
    node: str
    folder: Path
    """The run's."""


class PageFeed:
    """Fills a board, and serves it while the watcher waits."""

    def __init__(self, subject: Subject, board: Board, endpoint: Endpoint, targets: TargetsFile | None = None) -> None:
        """Hold a page and who serves it."""
        self._subject, self.board, self.endpoint, self._targets = subject, board, endpoint, targets
        self._rows: dict[int, Rows] = {}

    def rows(self, rank: int, pieces: Iterable[bytes], table: SchemaTable, *, checked: bool = False) -> None:
        """Take drained records of a rank."""
        from stepscope.exporters.prometheus.rows import Rows

        taken = self._rows.setdefault(rank, Rows()).take(pieces, table, checked=checked)
        self.board.update(self._subject.run, rank, self._subject.project, *taken)

    def sample(self, rank: int, values: Mapping[str, float]) -> None:
        """Take a row that the watcher made itself; its rank is below 0."""
        self.board.update(self._subject.run, rank, self._subject.project, values)

    def end(self, rank: int) -> None:
        """Take a rank off the page."""
        self._rows.pop(rank, None)
        self.board.forget(self._subject.run, rank)

    def wait(self, seconds: float, wake: Collection[int] = ()) -> bool:
        """Serve for so long, or until one of the descriptors in `wake` becomes readable; say whether one has."""
        return self.endpoint.poll(max(0.0, seconds), wake)

    def close(self) -> None:
        """Take the file away and stop serving. May be called again."""
        if self._targets is not None:
            self._targets.remove()
        self.endpoint.close()


def open_feed(
    settings: Mapping[str, Any], subject: Subject, metrics: Sequence[Metric], note: Callable[[str], None]
) -> Feed:
    """Return what the configuration asks for; what cannot be had is noted, and the watcher goes on without it.

    Args:
        settings: the configuration by key: `exporters.prometheus.enabled`, `host`, `port`, `targets`, `max_series`.
        subject: what is watched.
        metrics: what the samplers declare.
        note: where to say what went wrong, and which port it is.
    """
    if not settings.get(f"{SECTION}enabled"):
        return NoFeed()
    from stepscope.exporters.prometheus.board import LIMIT, Board

    board = Board(metrics, limit=settings.get(f"{SECTION}max_series", LIMIT))
    try:
        endpoint = _endpoint(settings, subject, board)
    except (StepscopeError, OSError) as error:
        note(str(error))
        return NoFeed()
    note(f"metrics for Prometheus are on http://{endpoint.target}/metrics")
    return PageFeed(subject, board, endpoint, _targets(settings, subject, endpoint, note))


def _endpoint(settings: Mapping[str, Any], subject: Subject, board: Board) -> Endpoint:
    from stepscope.core.access import is_loopback, kept_token
    from stepscope.exporters.prometheus.server import Endpoint

    host = settings.get(f"{SECTION}host", "127.0.0.1")
    is_guarded = settings.get(f"{SECTION}token", False) or not is_loopback(host)
    token = kept_token(subject.folder / f"prometheus-{subject.node}.token") if is_guarded else None
    return Endpoint(board.page, host=host, port=settings.get(f"{SECTION}port", 8000), token=token)


def _targets(
    settings: Mapping[str, Any], subject: Subject, endpoint: Endpoint, note: Callable[[str], None]
) -> TargetsFile | None:
    """Write the file for Prometheus: into the folder that was named, readable by others, else into the run."""
    from stepscope.exporters.prometheus.targets import TargetsFile

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
