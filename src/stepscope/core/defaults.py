"""The settings of a run without a configuration, without the machinery that reads configurations.

`init` must return quickly, and most runs set nothing: the tables of core.settings would be a third of its imports.
A test keeps these values equal to them.
"""

from __future__ import annotations

from typing import Any, Protocol


class Settings(Protocol):
    """The part of a configuration that the session needs; `core.config.Config` has it too."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for people."""
        ...

    def get(self, path: str) -> Any:
        """Return the value at a path such as "store.seal_bytes"."""
        ...

    def shown(self) -> dict[str, Any]:
        """Return the settings that were set, by path, without secrets."""
        ...


VALUES: dict[str, Any] = {
    "recorder.enabled": True,
    "recorder.ring_bytes": 4 << 20,
    "recorder.spill_bytes": 128 << 20,
    "recorder.memory_map": True,
    "recorder.track_rank_0_only": False,
    "recorder.max_names": 200_000,
    "recorder.max_events_per_second": 1000,
    "recorder.device_values": True,
    "recorder.overhead_budget": 0.01,
    "recorder.watch.gradients": True,
    "recorder.watch.parameters": False,
    "recorder.watch.layers": (),
    "recorder.watch.modules": (),
    "recorder.watch.memory": True,
    "recorder.watch.flops": False,
    "watcher.drain_interval": 0.1,
    "watcher.sync_interval": 1.0,
    "watcher.heartbeat_interval": 2.0,
    **dict.fromkeys([f"watcher.analysis.{part}" for part in ("trend", "anomaly", "regression")], True),
    "watcher.stacks": True,
    "watcher.stall_after": 10.0,
    "watcher.hang_after": 300.0,
    "samplers.enabled": True,
    "samplers.interval": 1.0,
    "samplers.gpu": True,
    "samplers.all_gpus": False,
    "samplers.cpu": True,
    "samplers.io": True,
    "samplers.processes": True,
    "samplers.budget": 0.005,
    **dict.fromkeys([f"samplers.intervals.{group}" for group in ("gpu", "cpu", "io", "processes")], 0.0),
    **dict.fromkeys([f"samplers.phases.{phase}" for phase in ("evaluation", "checkpoint", "compile")], 0.0),
    "exporters.tensorboard.enabled": False,
    "exporters.tensorboard.dir": "",
    "exporters.grafana.enabled": False,
    "exporters.grafana.path": "",
    "exporters.prometheus.enabled": False,
    "exporters.prometheus.host": "127.0.0.1",
    "exporters.prometheus.token": False,
    "exporters.prometheus.port": 8000,
    "exporters.prometheus.targets": "",
    "exporters.prometheus.max_series": 2000,
    "store.dir": "stepscope-runs",
    "store.seal_bytes": 4 << 20,
    "store.seal_interval": 300.0,
    "store.auto_cleanup": False,
    "store.max_size_gb": 0.0,
    "store.max_age_days": 0.0,
    "store.max_runs": 0,
    "web.enabled": False,
    "web.host": "127.0.0.1",
    "web.port": 8080,
    "web.refresh_interval": 0.5,
    "web.metrics": (),
}


class Defaults:
    """Settings of which only the root of the runs may differ from the default."""

    notices: tuple[str, ...] = ()

    def __init__(self, root: str = "") -> None:
        """Take the root of the runs, as STEPSCOPE_DIR names it; empty is the default."""
        self._set = {"store.dir": root} if root else {}

    def get(self, path: str) -> Any:
        """Return the value at a path."""
        return self._set.get(path, VALUES[path])

    def shown(self) -> dict[str, Any]:
        """Return the settings that were set."""
        return dict(self._set)
