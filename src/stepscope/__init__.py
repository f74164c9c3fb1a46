"""Watch machine-learning training: what every step does and costs, and why a run is slow or going wrong."""

from __future__ import annotations

from stepscope.core.provided import provide
from stepscope.version import __version__ as __version__

TYPE_CHECKING = False  # what type checkers take for typing's, without its 5 ms of import
if TYPE_CHECKING:
    from typing import Any

    from stepscope.session.current import data, finish, log, phase, step, watch
    from stepscope.session.opening import init
    from stepscope.session.run import Run
    from stepscope.sources.opened_run import open_run as open
    from stepscope.store.catalog import runs

__all__ = ["Run", "data", "finish", "init", "log", "open", "phase", "runs", "step", "watch"]

_HOMES = {
    "init": ("stepscope.session.opening", "init"),
    "Run": ("stepscope.session.run", "Run"),
    "open": ("stepscope.sources.opened_run", "open_run"),
    "runs": ("stepscope.store.catalog", "runs"),
    **{name: ("stepscope.session.current", name) for name in ("log", "step", "phase", "data", "watch", "finish")},
}

provide(
    {
        "catch": ("stepscope.integrations.catching.arming", "catch"),
        "instrument": ("stepscope.integrations.torch.instrument", "instrument"),
        "profile": ("stepscope.integrations.profiler.profile", "profile_run"),
        "stand_in_for_wandb": ("stepscope.integrations.wandb_drop_in.stand_in", "stand_in"),
        "read_trace": ("stepscope.importers.traces.chrome_trace", "read_trace"),
    }
)


def __getattr__(name: str) -> Any:
    """Load a public name at its first use: importing stepscope loads nothing else."""
    if name not in _HOMES:
        raise AttributeError(f"module 'stepscope' has no attribute {name!r}")
    import importlib  # kept off the import of the package

    module, attribute = _HOMES[name]
    value = globals()[name] = getattr(importlib.import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
