"""The settings of a run without a configuration, without the code that reads configurations.

`init` must return quickly, and most runs set nothing: the tables of core.settings would be a third of its imports.
A test keeps these values equal to them.
"""

from __future__ import annotations

from typing import Any


def _section(name: str, **values: Any) -> dict[str, Any]:
    return {f"{name}.{key}": value for key, value in values.items()}


VALUES: dict[str, Any] = {
    **_section("recorder", enabled=True, ring_bytes=4 << 20, spill_bytes=128 << 20, memory_map=True),
    **_section("recorder", track_rank_0_only=False, max_names=200_000, max_events_per_second=1000),
    **_section("recorder", device_values=True, overhead_budget=0.01, catch="auto", console="auto"),
    **_section("recorder.watch", gradients=True, parameters=False, layers=(), modules=(), memory=True, flops=False),
    **_section("watcher", drain_interval=0.1, sync_interval=1.0, heartbeat_interval=2.0),
    **_section("watcher", stacks=True, stall_after=10.0, hang_after=300.0),
    **_section("watcher.analysis", trend=True, anomaly=True, regression=True),
    **_section("samplers", enabled=True, interval=1.0, gpu=True, all_gpus=False, cpu=True, io=True, processes=True),
    **_section("samplers", budget=0.005),
    **_section("samplers.intervals", gpu=0.0, cpu=0.0, io=0.0, processes=0.0),
    **_section("samplers.phases", evaluation=0.0, checkpoint=0.0, compile=0.0),
    **_section("exporters.tensorboard", enabled=False, dir=""),
    **_section("exporters.grafana", enabled=False, path=""),
    **_section("exporters.prometheus", enabled=False, host="127.0.0.1", token=False, port=8000, targets=""),
    **_section("exporters.prometheus", max_series=2000),
    **_section("store", dir="stepscope-runs", seal_bytes=4 << 20, seal_interval=300.0, console_bytes=32 << 20),
    **_section("store", auto_cleanup=False, max_size_gb=0.0, max_age_days=0.0, max_runs=0),
    **_section("web", enabled=False, host="127.0.0.1", port=8080, refresh_interval=0.5, metrics=()),
}


class Defaults:
    """Settings of which only the root of the runs may differ from the default; `core.config.Config` reads any."""

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
