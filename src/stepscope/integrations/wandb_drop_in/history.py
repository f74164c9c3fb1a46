"""The history of a run: `wandb.log` with W&B's own step counter, rows in several calls, and steps of the user's own."""

from __future__ import annotations

import operator
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from stepscope.importers.words import whole
from stepscope.integrations.wandb_drop_in.media import LoggedHistogram
from stepscope.integrations.wandb_drop_in.metrics import MetricDefinitions
from stepscope.integrations.wandb_drop_in.rows import media_facts, sort_row
from stepscope.integrations.wandb_drop_in.unknown import NOTICES
from stepscope.recorder.device import on_device

if TYPE_CHECKING:
    from stepscope.integrations.wandb_drop_in.metrics import MetricDefinition
    from stepscope.integrations.wandb_drop_in.rows import SortedRow
    from stepscope.integrations.wandb_drop_in.summary import Summary
    from stepscope.session.run import Run

_NUMBERS = frozenset((float, int, bool)).issuperset


class LogHistory:
    """Rows of values. A row stays open while calls give its step or `commit=False`; its values are recorded at once.

    Only values whose step is another metric (`define_metric`) wait until that is known, or until the row is closed.
    """

    def __init__(self, run: Run, summary: Summary, first_step: int = 0) -> None:
        """Record into `run`, from `first_step` on."""
        self.step = first_step
        """The step of the open row, or of the next one."""
        self.definitions = MetricDefinitions()
        self._run, self.summary = run, summary
        self._is_plain, self._is_over = True, False
        self._last: dict[str, Any] = vars(summary)["_items"]
        self._row: dict[str, Any] = {}
        """The numbers of the open row, if some metric is the step of others."""
        self._waiting: dict[str, Any] = {}
        self._axes: dict[str, Any] = {}
        """The last value of each metric that is the step of others."""

    def log(self, data: Any, step: Any = None, commit: Any = None) -> None:
        """Record one call of `wandb.log`; never raises. Rows of plain numbers take the short way."""
        if (
            step is None
            and commit is None
            and self._is_plain
            and type(data) is dict
            and _NUMBERS(map(type, data.values()))
        ):
            self._run.log(data, step=(at := self.step))  # by name: the hot path in C takes no other
            self._last.update(data)
            self.step = at + 1
            return
        if self._is_over:
            NOTICES.say("over", "wandb.log: the run has ended; what is logged now is not recorded")
            return
        with NOTICES.shield("log-row", "record a row"):
            self._log_any(sort_row(data), _step_of(step), commit)

    def define(self, name: str, **given: Any) -> MetricDefinition:
        """Add the definition of a metric, from the next row on."""
        self._is_plain = False
        return self.definitions.define(name, **given)

    def end(self) -> None:
        """Record what is held back; later rows are reported, once, and left out."""
        self.close_row()
        self._is_plain, self._is_over = False, True

    def _log_any(self, row: SortedRow, step: int | None, commit: Any) -> None:
        if step is not None and step < self.step:  # W&B drops such a row
            NOTICES.say("late", f"wandb.log: step {step} comes after step {self.step}; W&B would drop it, it is kept")
            self._write(row, step)
            return
        if step is not None and step > self.step:
            self.close_row()
            self.step = step
        is_whole = commit if commit is not None else step is None
        self._write(row, self.step, is_open=not is_whole)
        if is_whole:
            self.close_row()
            self.step += 1

    def _write(self, row: SortedRow, step: int, *, is_open: bool | None = None) -> None:
        """Record a row; with axes, a row of the counter's own step goes through the open row."""
        if row.numbers:
            if self.definitions.axes and is_open is not None:
                self._axes.update({axis: row.numbers[axis] for axis in self.definitions.used(row.numbers)})
                self._row.update(row.numbers)
                self._waiting.update(row.numbers)
                self._settle(step, is_last=not is_open)
            else:
                self._run.log(row.numbers, step=step)
            self.summary.follow({name: _kept(value) for name, value in row.numbers.items()}, self.definitions)
        if row.rest:
            self._run.own_event("log", step=step, values=row.rest)
            self.summary.follow(row.rest, self.definitions)
        for name, value in row.media.items():
            self._run.own_event(step=step, name=name, source="wandb", **media_facts(value))
        for name, value in row.histograms.items():
            if isinstance(value, LoggedHistogram):
                self._run.own_event("histogram", step=step, name=name, **value.facts)
            else:
                self._run.histogram(name, value, step)

    def close_row(self) -> None:
        """Record what still waits for its step, at W&B's own or at the last value of its axis."""
        if self._waiting:
            self._settle(self.step, is_last=True)
        self._row.clear()

    def _settle(self, step: int, *, is_last: bool) -> None:
        """Record the values whose step is known by now; all of them if the row ends."""
        if is_last:
            self._take_last_axes()
        placed: dict[int, dict[str, Any]] = defaultdict(dict)
        for name in list(self._waiting):
            axis = self.definitions.axis(name)
            if axis is None or axis in self._row or is_last:
                at = step if axis is None else _place(self._row.get(axis), step)
                placed[at][name] = self._waiting.pop(name)
        for at, values in placed.items():
            self._run.log(values, step=at)

    def _take_last_axes(self) -> None:
        """Complete the row by the last value of each axis that it lacks, as W&B does."""
        for name in list(self._waiting):
            axis = self.definitions.axis(name)
            if axis is None or axis in self._row or not self.definitions.is_synced(name):
                continue
            if axis in self._axes:
                self._row[axis] = self._waiting[axis] = self._axes[axis]


def _place(value: Any, otherwise: int) -> int:
    """Return the step that the value of an axis means; the given one if it means none, or is on a device."""
    if value is None or on_device(value):
        return otherwise
    number = whole(value.item() if hasattr(value, "item") else value)
    return otherwise if number is None else number


def _step_of(step: Any) -> int | None:
    """Return a step as an integer; None if none was given, or an invalid one."""
    if step is None or type(step) is int:
        return step
    try:
        if not on_device(step):  # reading it there would wait for the device
            return int(step) if isinstance(step, float) else operator.index(step)
    except (TypeError, ValueError, OverflowError):
        pass  # reported below
    NOTICES.say("step", "wandb.log: a step that is no whole number is not used; W&B's own counter goes on")
    return None


def _kept(value: Any) -> Any:
    """Return a value for the summary: no reference to a tensor that changes or that holds a graph."""
    if hasattr(value, "detach"):
        value = value.detach()
        return value.clone() if on_device(value) else value.item()
    return value.item() if hasattr(value, "item") and not on_device(value) else value
