"""The site: everything the server shares between requests, wired together."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError
from stepscope.core.strict_json import null, strict
from stepscope.store.catalog import salvage_quietly
from stepscope.store.layout import RunFolder
from stepscope.version import __version__
from stepscope.web import parameters
from stepscope.web.failures import NotFoundError
from stepscope.web.guard import Traffic
from stepscope.web.reader_pool import ReaderPool
from stepscope.web.run_list import THREAD_END_SECONDS, ListedRuns

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from stepscope.store.block_cache import BlockCache
    from stepscope.store.reader import Past
    from stepscope.web.live import FollowedRuns

SALVAGE = 15.0
"""Seconds between two searches for rows of dead processes, while runs are being read."""
REFRESH = 0.5
"""Seconds between two live polls of a page."""
CAPABILITIES = {"alerts": True, "actions": True, "diagnosis": True}
"""Parts that the page shows."""


class Site:
    """One served folder of runs: their list, the threads that read them, and the runs that are followed live."""

    def __init__(
        self, root: Path, heading: str = "Stepscope", refresh: float = REFRESH, first: tuple[str, ...] = ()
    ) -> None:
        """Serve the runs below `root`; `start` starts the threads.

        A page polls live runs every `refresh` seconds, and shows the metrics in `first` before others.
        """
        self.root, self.heading, self.refresh, self.first = root, heading, refresh, first
        self.readers = ReaderPool()
        self.runs = ListedRuns(root, self._card)
        self.traffic = Traffic()
        self.started = time.monotonic()
        self._live_runs: FollowedRuns | None = None
        self._cache: BlockCache | None = None
        self._lock = threading.Lock()
        self._card_readers = ReaderPool(threads=1)
        self._salvaged = 0.0
        self._warming: threading.Thread | None = None

    def start(self) -> None:
        """Start to list the runs, and load the modules that reading needs, so that the first request is fast."""
        self.runs.start()
        self._warming = threading.Thread(target=self._warm_up, name="stepscope-warm-up", daemon=True)
        self._warming.start()

    def stop(self) -> None:
        """End the threads."""
        self.runs.stop()
        self.readers.close()
        if self._warming is not None:
            self._warming.join(THREAD_END_SECONDS)
        self._card_readers.close()
        if self._live_runs is not None:
            self._live_runs.close()

    @property
    def live_runs(self) -> FollowedRuns:
        """The runs that are followed; loads numpy and DuckDB."""
        cache = self.cache
        with self._lock:
            if self._live_runs is None:
                from stepscope.web.live import FollowedRuns

                self._live_runs = FollowedRuns(cache)
            return self._live_runs

    @property
    def cache(self) -> BlockCache:
        """Blocks of recently drawn charts, of all runs; loads numpy."""
        with self._lock:
            if self._cache is None:
                from stepscope.store.block_cache import BlockCache

                self._cache = BlockCache()
            return self._cache

    def facts(self) -> dict[str, Any]:
        """Return version, limits and settings of the server."""
        about = {"version": __version__, "root": str(self.root), "heading": self.heading, "refresh": self.refresh}
        limits = {key: getattr(parameters, key.upper()) for key in ("names", "runs", "points", "rows")}
        return {**about, "capabilities": CAPABILITIES, "limits": limits, "now": time.time()}

    def folder(self, key: str) -> Path:
        """Return the folder of a listed run. Raises NotFoundError."""
        path = self.runs.path(key)
        if path is None:
            raise NotFoundError("no such run is listed here; see the list of runs")
        return path

    def open(self, key: str, connection: duckdb.DuckDBPyConnection) -> Past:
        """Open a run for reading in the calling thread. Raises NotFoundError, StepscopeError."""
        from stepscope.store.reader import Past

        if time.monotonic() - self._salvaged > SALVAGE:
            self._salvaged = time.monotonic()
            salvage_quietly()
        return Past(RunFolder(self.folder(key)), connection, self.cache)

    def _warm_up(self) -> None:
        from stepscope.web import run_reads  # noqa: F401 - loads numpy and DuckDB before they are needed

        _ = self.live_runs

    def _card(self, path: Path) -> dict[str, Any] | None:
        """Return the card of a run; None if it cannot be read, which its row reports already."""
        from stepscope.store.reader import Past
        from stepscope.views.run_card import card

        try:
            facts: dict[str, Any] = strict(card(Past(RunFolder(path), self._card_readers.connection())), null)
        except (StepscopeError, OSError):
            return None
        return facts
