"""What the configuration says of the page."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.core.config import discover, load_or_default
from stepscope.core.errors import UsageError
from stepscope.store.catalog import runs_root
from stepscope.web.server import Options


def serving(
    root: str | None = None, host: str | None = None, port: int | None = None, *, others: bool = False
) -> Options:
    """Return what to serve: as given, else as configured.

    Raises:
        UsageError: there is no such port.
    """
    config = load_or_default(discover(Path.cwd(), os.environ), environ=os.environ)
    chosen = int(config.get("web.port")) if port is None else port
    if not 0 <= chosen <= 65535:
        raise UsageError(f"serve on {chosen}", "ports are 0 to 65535", "use --port 8080")
    address = str(config.get("web.host")) if host is None else host
    refresh, first = float(config.get("web.refresh_interval")), tuple(config.get("web.metrics"))
    return Options(runs_root(root), address, chosen, others=others, refresh=refresh, first=first)
