"""A small dashboard: two graphs of rows that the program appends itself, refreshed in the browser.

For recorded runs use the page of `stepscope serve`.
"""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import uvicorn
from starlette.responses import Response
from starlette.routing import Route, Router

from stepscope.core.access import bracketed
from stepscope.core.errors import UsageError
from stepscope.web.access_policy import AccessPolicy
from stepscope.web.guard import RequestGuard
from stepscope.web.listening import listen, token_for
from stepscope.web.protocol import uvicorn_config
from stepscope.web.static_files import StaticFiles

if TYPE_CHECKING:
    from starlette.requests import Request

HEADING = "Stepscope Training Monitor"
PAGE = Path(__file__).parent / "dashboard_page"
KEPT = 5000
"""Rows in a graph; the newest are shown."""
SPELLINGS = {
    "timestamp": ("timestamp", "time"),
    "loss": ("loss", "training_loss", "train_loss"),
    "cpu_percent": ("cpu_percent", "cpu_usage", "cpu_usage_percent"),
    "gpu_memory": ("gpu_memory", "gpu_memory_mb", "gpu_memory_used_mb"),
}
"""Accepted keys of each column."""


class MonitoringDashboard:
    """Two graphs, loss and resources, over the rows in `metrics_data`."""

    def __init__(self, heading: str = HEADING, *, token_file: Path | None = None) -> None:
        """Begin without data.

        The token of the page is in `token_file`, which is created if it is missing. By default the token is new at each
        start on loopback, and stored in the user's settings for other addresses.
        """
        self.heading = heading
        self.metrics_data: list[dict[str, Any]] = []
        """Rows with `timestamp`, `loss`, `cpu_percent` and `gpu_memory` (MB); a missing value leaves a gap."""
        self._files, self._token_file = StaticFiles(PAGE), token_file
        self.app = Router([Route("/figures", self._figures), Route("/{rest:path}", self._page)])
        """The ASGI application without the guard that `run` adds."""

    def create_loss_graph(self) -> dict[str, Any]:
        """Return the graph of the loss as plain data in Plotly's form."""
        time, loss = self._columns("timestamp", "loss")
        trace = {"type": "scatter", "x": time, "y": loss, "mode": "lines+markers", "name": "Training Loss"}
        layout = {"title": "Training Loss Over Time", "xaxis": {"title": "Time"}, "yaxis": {"title": "Loss"}}
        return {"data": [trace], "layout": layout}

    def create_resource_graph(self) -> dict[str, Any]:
        """Return the graph of CPU usage and GPU memory, the latter on its own axis on the right."""
        time, cpu, memory = self._columns("timestamp", "cpu_percent", "gpu_memory")
        processor = {"type": "scatter", "x": time, "y": cpu, "mode": "lines", "name": "CPU Usage"}
        gpu = {"type": "scatter", "x": time, "y": memory, "mode": "lines", "name": "GPU Memory", "yaxis": "y2"}
        layout = {
            "title": "Resource Usage",
            "xaxis": {"title": "Time"},
            "yaxis": {"title": "CPU Usage (%)"},
            "yaxis2": {"title": "GPU Memory (MB)", "overlaying": "y", "side": "right"},
        }
        return {"data": [processor, gpu], "layout": layout}

    def run(self, host: str = "localhost", port: int = 8050) -> None:
        """Serve the page until interrupted. Raises StepscopeError, with the process, if the port is in use."""
        if not 0 <= port <= 65535:
            raise UsageError(f"serve on {port}", "ports are 0 to 65535", "take port=8050")
        token = token_for(host, self._token_file)
        sockets = listen(host, port)
        number = sockets[0].getsockname()[1]
        print(f"{self.heading}: http://{bracketed(host)}:{number}/?token={token}")  # noqa: T201 - the user needs the address
        self.server(AccessPolicy(host, token, number)).run(sockets=sockets)

    def server(self, policy: AccessPolicy) -> uvicorn.Server:
        """Return the server, guarded by an access policy."""
        return uvicorn.Server(uvicorn_config(RequestGuard(self.app, policy)))

    def _columns(self, *names: str) -> list[list[float | None]]:
        rows = list(self.metrics_data)[-KEPT:]
        return [[_number(row, name) for row in rows] for name in names]

    async def _figures(self, _request: Request) -> Response:
        figures = {"loss": self.create_loss_graph(), "resources": self.create_resource_graph()}
        return Response(msgspec.json.encode({"heading": self.heading, **figures}), media_type="application/json")

    async def _page(self, request: Request) -> Response:
        return self._files.answer(request.scope["path"], request.headers.get("accept-encoding", ""))


def _number(row: Any, name: str) -> float | None:
    """Return a value of a row under any of its spellings; None if it is missing or not a finite number."""
    if not isinstance(row, dict):
        return None
    value = next((row[key] for key in SPELLINGS[name] if row.get(key) is not None), None)
    if isinstance(value, dt.datetime):
        value = value.timestamp()
    if isinstance(value, dict):  # by GPU: the sum
        parts = [part for part in value.values() if isinstance(part, (int, float))]
        value = sum(parts) if parts else None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
