"""Keep the metrics and scores of a training in process, and write them as JSON at checkpoints and at the end."""

from __future__ import annotations

import re
import time
from collections import deque
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.names import clean
from stepscope.recorder.complaints import Complaints
from stepscope.trackers.json_file import write_json
from stepscope.trackers.metrics.metric_tracker import MetricTracker
from stepscope.trackers.metrics.score_distribution import ScoreDistributionTracker

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from stepscope.trackers.logged_run import LoggedRun

CAPACITY = 100_000
"""Newest values kept of each metric; the statistics cover all."""


class TrainingLogger:
    """Log steps with their metrics and scores; export them as JSON with a stable order of keys.

    Nothing is written before a checkpoint or an export, and nothing raises into the training. `stepscope import` stores
    an export as a run, which `stepscope export --format tensorboard` can write for TensorBoard.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] = "logs",
        experiment_name: str = "experiment",
        *,
        run: LoggedRun | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Log into a folder, which is made when needed, and to `run` if one is given."""
        self.log_dir = Path(log_dir)
        self.experiment_name = str(experiment_name)
        self.metrics = MetricTracker(capacity=CAPACITY)
        self.scores = ScoreDistributionTracker()
        self._run, self._wall, self._notices = run, wall, Complaints()
        self._places: dict[str, deque[tuple[int | None, float]]] = {}
        self._last_step: int | None = None

    def log_step(
        self,
        step: int | None = None,
        metrics: Mapping[str, object] | None = None,
        scores: Iterable[object] | None = None,
    ) -> None:
        """Add the metrics of a step, and the scores of its answers (None: invalid)."""
        now = self._wall()
        self._last_step = step
        for name, value in (metrics or {}).items():
            label, refused = clean(name)[0], self.metrics.refused
            self.metrics.update(label, value, step)
            if self.metrics.refused == refused:
                self._places.setdefault(label, deque(maxlen=CAPACITY)).append((step, now))
        values: dict[str, Any] = dict(metrics or {})
        if scores is not None:
            self.scores.update(scores, step)
            newest = self.scores.newest or {}
            figures = {"score/mean": newest.get("mean_score"), "invalid_ratio": newest.get("invalid_rate")}
            values |= {name: figure for name, figure in figures.items() if figure is not None}
        if self._run is not None and values:
            with self._notices.shield("run", "log to the run", "the values are kept in process"):
                self._run.log(values, step=step)

    def get_summary(self) -> dict[str, Any]:
        """Return the name of the experiment, the time, the last step, and the statistics of metrics and scores."""
        return {
            "experiment_name": self.experiment_name,
            "timestamp": _iso(self._wall()),
            "last_step": self._last_step,
            "metric_summaries": {name: self.metrics.get_summary(name) for name in self.metrics.names()},
            "score_distribution": self.scores.get_distribution(),
        }

    def save_checkpoint_metrics(self, tag: str) -> Path | None:
        """Write the current summary to `<experiment>_<tag>.json`; return the file, None if that fails (reported)."""
        return self._save({**self.get_summary(), "checkpoint": str(tag)}, f"{self.experiment_name}_{tag}")

    def export_all(self) -> Path | None:
        """Write summary, scores over time and all kept values to `<experiment>_metrics.json`; return the file.

        `raw_metrics` has the values, `raw_steps` and `raw_times` their steps and times (ISO 8601, UTC), value by value.
        """
        places = {name: list(self._places.get(name, ())) for name in self.metrics.names()}
        facts = {
            **self.get_summary(),
            "score_history": self.scores.get_history(),
            "raw_metrics": {
                name: self.metrics.values(name)[-len(kept) :] if kept else [] for name, kept in places.items()
            },
            "raw_steps": {name: [step for step, _ in kept] for name, kept in places.items()},
            "raw_times": {name: [_iso(time) for _, time in kept] for name, kept in places.items()},
        }
        return self._save(facts, f"{self.experiment_name}_metrics")

    def _save(self, facts: dict[str, Any], stem: str) -> Path | None:
        name = re.sub(r"[^\w.\- ]", "_", stem).lstrip(". ")[:200] or "metrics"  # cannot leave the folder
        target = self.log_dir / f"{name}.json"
        return target if write_json(target, facts, repr, self._notices) else None


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
