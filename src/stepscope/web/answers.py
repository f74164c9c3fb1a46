"""What each question is answered with: finds the run, reads it in a thread, and encodes what the views say."""

from __future__ import annotations

import math
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.core.errors import StepscopeError
from stepscope.store.catalog import salvage_quietly
from stepscope.store.layout import RunFolder
from stepscope.version import __version__
from stepscope.web import questions
from stepscope.web.catalogue import PATIENCE, Catalogue
from stepscope.web.readers import Readers

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from stepscope.store.block_cache import BlockCache
    from stepscope.store.reader import Past
    from stepscope.web.live import Channels

SALVAGE = 15.0
"""Seconds between two looks for rows of dead processes, while somebody watches."""
REFRESH = 0.5
"""Seconds between two questions of a page for what is new."""


CAPABILITIES = {"alerts": True, "actions": True, "diagnosis": True}
"""Which parts the page shows."""


class NotThereError(Exception):
    """There is no such run, metric or part."""


class Site:
    """One root of runs, served: the list, the threads that read, the runs that are followed."""

    def __init__(
        self, root: Path, heading: str = "Stepscope", refresh: float = REFRESH, first: tuple[str, ...] = ()
    ) -> None:
        """Serve the runs below `root`, under a heading, with the metrics `first` before others; `start` begins."""
        self.first = first
        self.root = root
        self.heading = heading
        self.refresh = refresh
        self.readers = Readers()
        self.catalogue = Catalogue(root, self._card)
        self._channels: Channels | None = None
        self._cache: BlockCache | None = None
        self._lock = threading.Lock()
        self._card_readers = Readers(threads=1)
        self._salvaged = 0.0
        self._warming: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look through the runs, and load what reading needs, so that the first question does not wait."""
        self.catalogue.start()
        self._warming = threading.Thread(target=self._warm_up, name="stepscope-warm-up", daemon=True)
        self._warming.start()

    def stop(self) -> None:
        """End the threads."""
        self.catalogue.stop()
        self.readers.close()
        if self._warming is not None:
            self._warming.join(PATIENCE)
        self._card_readers.close()
        if self._channels is not None:
            self._channels.close()

    @property
    def channels(self) -> Channels:
        """The runs that are followed; numpy and DuckDB are loaded for it."""
        with self._lock:
            if self._channels is None:
                from stepscope.web.live import Channels

                self._channels = Channels()
            return self._channels

    @property
    def cache(self) -> BlockCache:
        """The blocks of charts that were drawn lately, of all runs; numpy is loaded for it."""
        with self._lock:
            if self._cache is None:
                from stepscope.store.block_cache import BlockCache

                self._cache = BlockCache()
            return self._cache

    def server(self) -> dict[str, Any]:
        """Return what the page must know of the server."""
        limits = {
            "names": questions.NAMES,
            "runs": questions.RUNS,
            "points": questions.POINTS,
            "rows": questions.ROWS,
        }
        return {
            "version": __version__,
            "root": str(self.root),
            "heading": self.heading,
            "refresh": self.refresh,
            "capabilities": CAPABILITIES,
            "limits": limits,
            "now": time.time(),
        }

    def folder(self, key: str) -> Path:
        """Return the folder of a run that is listed. Raises NotThereError."""
        path = self.catalogue.path(key)
        if path is None:
            raise NotThereError("no such run is listed here; see the list of runs")
        return path

    def open(self, key: str, connection: duckdb.DuckDBPyConnection) -> Past:
        """Open a run for reading in the calling thread. Raises NotThereError, StepscopeError."""
        from stepscope.store.reader import Past

        if time.monotonic() - self._salvaged > SALVAGE:
            self._salvaged = time.monotonic()
            salvage_quietly()
        return Past(RunFolder(self.folder(key)), connection, self.cache)

    def _warm_up(self) -> None:
        from stepscope.views import run_head  # noqa: F401 - loads numpy and DuckDB beside the first questions

        _ = self.channels

    def _card(self, path: Path) -> dict[str, Any] | None:
        """Return the card of a run; None if it cannot be read, which its row says already."""
        from stepscope.store.reader import Past
        from stepscope.views.run_card import card

        try:
            found: dict[str, Any] = strict(card(Past(RunFolder(path), self._card_readers.connection())))
        except (StepscopeError, OSError):
            return None
        return found


def strict(value: Any) -> Any:
    """Return plain data with null in place of every number that is not finite, and no text that UTF-8 cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {strict(key) if isinstance(key, str) else str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    if value is None or isinstance(value, (bool, int)):
        return value
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def encoded(value: Any) -> bytes:
    """Return plain data as strict JSON."""
    return msgspec.json.encode(strict(value))
