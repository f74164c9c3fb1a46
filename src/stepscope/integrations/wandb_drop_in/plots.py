"""`wandb.plot`: charts drawn from a table. What is drawn and of how many rows is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.integrations.wandb_drop_in.media import LoggedChart
from stepscope.integrations.wandb_drop_in.unknown import unknown

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ("line", "scatter", "bar", "histogram", "line_series", "pr_curve", "roc_curve", "confusion_matrix")


def _drawer(kind: str) -> Callable[..., LoggedChart]:
    def draw(*args: Any, title: Any = None, **_: Any) -> LoggedChart:
        rows = getattr(args[0], "data", None) if args else None
        return LoggedChart(kind, len(rows) if isinstance(rows, list) else None, title)

    draw.__name__, draw.__doc__ = kind, f"Return a chart ({kind}) to log."
    return draw


DRAWERS = {kind: _drawer(kind) for kind in KINDS}


def plot_table(vega_spec_name: str = "", data_table: Any = None, *_: Any, **__: Any) -> LoggedChart:
    """Return a chart of the user's own design to log."""
    return LoggedChart(str(vega_spec_name), len(getattr(data_table, "data", ())))


def visualize(id: str = "", value: Any = None) -> LoggedChart:  # noqa: A002 - W&B's spelling
    """Return a chart of the user's own design to log."""
    return plot_table(id, value)


def __getattr__(name: str) -> Any:
    return DRAWERS[name] if name in DRAWERS else unknown(f"plot.{name}")
