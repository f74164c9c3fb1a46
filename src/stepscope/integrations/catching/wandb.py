"""Weights & Biases: what `Run.log` is handed, at W&B's own step or at the axis of `define_metric`; the configuration.

`wandb.log` is a bound method of its run: what all ways of logging call is `Run._log`, so that is what is wrapped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from stepscope.core.step_axes import axis_of, whole_step
from stepscope.integrations.catching.following import CallFollower
from stepscope.integrations.catching.things import flat, host_number

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from stepscope.integrations.catching.caught import Caught
    from stepscope.integrations.torch.patches import Patches

SOURCE = "wandb"
MODULES = ("wandb.sdk.wandb_run", "wandb.sdk.lib.noop_run")


class OpenRow:
    """The row of a W&B run that is not committed yet, and the axes of its metrics."""

    def __init__(self, record: Callable[..., None]) -> None:
        self._record = record
        self.axes: dict[str, str] = {}
        self._axis: dict[str, str | None] = {}
        self._last: dict[str, Any] = {}
        """The last value of each metric that is an axis: W&B puts it into rows that lack it."""
        self._row: dict[str, Any] = {}
        self._step: Any = None

    def define(self, name: str, axis: str) -> None:
        """Make one metric the step of another, or of all that begin as `name` does before its `*`."""
        self.axes[name] = axis
        self._axis.clear()

    def add(self, data: dict[str, Any], step: Any, *, is_last: bool, may_wait: bool) -> None:
        """Add values to the row of a step, and record the row if they are its last.

        A row that may get more values is recorded at once, unless it `may_wait`, or the axis of a value is missing.
        """
        if self._row and self._step != step:
            self.commit()
        self._step = step
        others = {}
        for name, value in flat(data):
            number = host_number(value)
            if number is None:
                others[name] = value  # not kept until the commit: that would hold on to memory, or to a graph
            else:
                self._row[name] = number
        if others:
            self._record(others, step)
        if is_last or not (may_wait or self._lacks_axis()):
            self.commit()

    def _lacks_axis(self) -> bool:
        return bool(self.axes) and any((axis := self._axis_of(name)) and axis not in self._row for name in self._row)

    def commit(self) -> None:
        """Record the row, each value at the step of its axis."""
        row, self._row = self._row, {}
        if not self.axes:
            if row:
                self._record(row, self._step)
            return
        known = {**self._last, **row}
        parts: dict[Any, dict[str, Any]] = {}
        for name, value in row.items():
            axis = self._axis_of(name)
            step = whole_step(known.get(axis)) if axis is not None else None
            parts.setdefault(self._step if step is None else step, {})[name] = value
        self._last.update({axis: row[axis] for axis in self.axes.values() if axis in row})
        for step, part in parts.items():
            self._record(part, step)

    def _axis_of(self, name: str) -> str | None:
        if name not in self._axis:
            self._axis[name] = axis_of(name, self.axes)
        return self._axis[name]


class OpenRows:
    """The open rows of W&B's runs; only a run that needs one has it."""

    def __init__(self, record: Callable[..., None]) -> None:
        self._record = record
        self.by_run: WeakKeyDictionary[Any, OpenRow] = WeakKeyDictionary()

    def of(self, run: Any) -> OpenRow:
        """Return the row of a run, from now on kept for it."""
        found = self.by_run.get(run)
        if found is None:
            found = self.by_run[run] = OpenRow(self._record)
        return found

    def add(self, run: Any, data: Any, step: Any, commit: Any, *, is_counted: bool) -> None:
        """Add what one call logs; `is_counted` says that the step is W&B's counter."""
        if isinstance(data, dict):
            is_last = is_counted if commit is None else bool(commit)
            self.of(run).add(data, step, is_last=is_last, may_wait=commit is False)

    def define(self, given: dict[str, Any]) -> None:
        """Take the arguments of `define_metric`."""
        axis = given["step_metric"]
        if axis:
            self.of(given["self"]).define(given["name"], getattr(axis, "name", axis))

    def commit(self) -> None:
        """Record all rows."""
        for row in list(self.by_run.values()):
            row.commit()


def labels_of(settings: Any) -> tuple[Any, dict[str, Any]]:
    """Return name and labels of a run, as `wandb.init` and the environment say."""
    labels = {key: getattr(settings, f"run_{key}", None) or "" for key in ("tags", "notes", "group")}
    return getattr(settings, "run_name", None), labels


def catch_disabled(run: type, caught: Caught, patches: Patches) -> None:
    """Wrap the run of `mode="disabled"`, which does nothing, not even count steps."""
    rows = OpenRows(caught.recorder(SOURCE))
    steps: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def take(run: Any, data: Any, step: Any = None, commit: Any = None, **_: Any) -> None:
        is_counted = step is None
        at = steps.get(run, 0) if is_counted else int(step)
        rows.add(run, data, at, commit, is_counted=is_counted)
        steps[run] = at + (is_counted if commit is None else bool(commit))

    taken = caught.walled(SOURCE, take)

    def log(original: Any) -> Any:
        def call(self: Any, *args: Any, **named: Any) -> Any:
            try:
                return original(self, *args, **named)
            finally:
                taken(self, *args, **named)

        return call

    def start(given: dict[str, Any]) -> None:
        caught.config(SOURCE, dict(given["config"]))
        name, labels = labels_of(given["settings"])
        caught.labels(SOURCE, None if str(name).startswith("dummy-") else name, labels)

    def define(given: dict[str, Any]) -> None:
        named = dict(zip(("name", "step_metric"), given["args"], strict=False)) | given["kwargs"]
        rows.define({"self": given["self"], "step_metric": None, **named})

    def end() -> None:
        rows.commit()
        for one in list(steps):  # W&B has no callback for changes of its configuration
            caught.config(SOURCE, dict(one.config))

    patches.wrap(run, "log", log, must=True)
    follower = CallFollower(caught, SOURCE, patches)
    follower.follow(run, "__init__", start)
    follower.follow(run, "define_metric", define)
    follower.follow(run, "finish", lambda _: end())
    caught.at_end.append(caught.walled(SOURCE, end))


def catch(module: ModuleType, caught: Caught, patches: Patches) -> None:
    """Wrap the methods of W&B's run."""
    if hasattr(module, "NoopRun"):
        catch_disabled(module.NoopRun, caught, patches)
        return
    rows, record = OpenRows(caught.recorder(SOURCE)), caught.recorder(SOURCE)
    add, by_run = caught.walled(SOURCE, rows.add), rows.by_run
    any_row: Any = vars(by_run)["data"]  # a plain dict: whether the other one is empty costs a call

    def log(original: Any) -> Any:
        def _log(self: Any, data: Any, step: Any = None, commit: Any = None, *more: Any, **named: Any) -> Any:
            at = getattr(self, "_local_step", None) if step is None else step
            try:
                return original(self, data, step, commit, *more, **named)
            finally:
                if commit is not False and type(data) is dict and not (any_row and self in by_run):
                    record(data, at)
                else:
                    add(self, data, at, commit, is_counted=step is None)

        return _log

    def config(given: dict[str, Any]) -> None:
        caught.config(SOURCE, dict(given["self"]._config._as_dict()))  # noqa: SLF001 - what W&B itself stores

    def start(given: dict[str, Any]) -> None:
        config(given)
        caught.labels(SOURCE, *labels_of(given["self"]._settings))  # noqa: SLF001 - W&B offers no other way

    def artifact(given: dict[str, Any]) -> None:
        what = given["artifact_or_path"]
        name = given.get("name") or getattr(what, "name", what)
        caught.note(SOURCE, str(name), what, kind="artifact")

    patches.wrap(module.Run, "_log", log, must=True)
    follower = CallFollower(caught, SOURCE, patches)
    follower.follow(module.Run, "_define_metric", rows.define)
    follower.follow(module.Run, "_finish", lambda _: rows.commit())
    follower.follow(module.Run, "_on_start", start)
    follower.follow(module.Run, "_config_callback", config)
    follower.follow(module.Run, "log_artifact", artifact)
    caught.at_end.append(caught.walled(SOURCE, rows.commit))
