"""`wandb.define_metric`: which metric is the step of others, and what the summary keeps of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core.step_axes import axis_of

if TYPE_CHECKING:
    from collections.abc import Iterable

SUMMARIES = ("min", "max", "mean", "last", "first", "best", "copy", "none")
"""What a summary may keep; W&B has these words, of which the last two keep no number of their own."""


class MetricDefinition:
    """One definition, as `define_metric` returns it."""

    def __init__(self, name: str, step_metric: str | None, summary: tuple[str, ...], **more: Any) -> None:
        """Keep what was asked for; what only concerns W&B's charts has no effect."""
        self.name, self.step_metric, self.summary = name, step_metric, summary or None
        self.step_sync, self.hidden = more.get("step_sync"), more.get("hidden")
        self.goal = more.get("goal")


class MetricDefinitions:
    """All definitions of a run; a name may end in `*` and then means every name that starts so."""

    def __init__(self) -> None:
        """Start with none: every metric has W&B's own step, and its last value is its summary."""
        self.axes: dict[str, str] = {}
        self._synced: dict[str, str] = {}
        """As `axes`; empty where a row without the axis stays without it."""
        self._summaries: dict[str, str] = {}

    def define(self, name: str, step_metric: Any = None, summary: Any = None, **more: Any) -> MetricDefinition:
        """Add a definition; it changes only what it mentions."""
        axis = getattr(step_metric, "name", step_metric)
        words = tuple(word for word in str(summary or "").lower().split(",") if word in SUMMARIES)
        if axis:
            self.axes[name] = str(axis)
            self._synced[name] = "" if more.get("step_sync") is False else str(axis)
        if words:
            self._summaries[name] = ",".join(words)
        return MetricDefinition(name, str(axis) if axis else None, words, **more)

    def axis(self, name: str) -> str | None:
        """Return the metric that is the step of `name`."""
        return axis_of(name, self.axes)

    def used(self, names: Iterable[str]) -> set[str]:
        """Return which of the names are the step of other metrics."""
        return set(self.axes.values()).intersection(names)

    def is_synced(self, name: str) -> bool:
        """Return whether a row without its axis takes the last value of that."""
        return bool(axis_of(name, self._synced))

    def kept(self, name: str) -> tuple[str, ...]:
        """Return what the summary keeps of `name`; nothing means its last value."""
        return tuple((axis_of(name, self._summaries) or "").split(",")) if self._summaries else ("",)
