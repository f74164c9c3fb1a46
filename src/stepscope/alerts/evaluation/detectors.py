"""Detectors: analyses that rules use as conditions. Each reads the end of a growing series, as reports do."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepscope.alerts.evaluation.job_facts import JobFacts
from stepscope.alerts.evaluation.rank_timings import timing_of
from stepscope.alerts.evaluation.series_window import Need
from stepscope.analysis.finding import CRITICAL, INFO, WARNING, Finding
from stepscope.analysis.stragglers.lateness import judge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.alerts.evaluation.series_window import SeriesWindow


LOSS_POINTS = 2600
"""Points of a loss that are kept: the 2 000 points that `spikes` needs, and the windows before."""
ANOMALIES = 50
"""Anomalies of a series that are remembered, so that a recurring one is not reported again."""
RISE_LOOK = 25
"""Points between two searches for a lasting rise, which is longer."""
ANOMALY_LOOK = FLAT_LOOK = 10.0
"""Minimum seconds between two searches for an anomaly, and for a plateau."""
SLOW_LOOK, SLOWER = 30.0, 0.05
"""Minimum seconds between two runs of a slow analysis on a machine series, and the same as a share of its window."""


class Sign(NamedTuple):
    """The result of a detector at one point."""

    at: int
    """Index in the window."""
    holds: bool
    finding: Finding | None = None


@dataclass
class DetectorInput:
    """The input of a detector: one series, other series of the same instance, and the detector's memory."""

    name: str
    window: SeriesWindow
    others: Mapping[str, SeriesWindow | None]
    options: Mapping[str, float]
    memory: dict[str, Any]
    ranks: Mapping[int, Mapping[str, SeriesWindow]] = field(default_factory=dict)
    """For a detector across ranks: the series of each."""
    job: JobFacts = field(default_factory=JobFacts)

    def last(self, name: str) -> float | None:
        """Return the newest value of another series; None without one."""
        other = self.others.get(name)
        return float(other.value[-1]) if other is not None and len(other) else None

    def is_due(self, points: int = 1, seconds: float = 0.0) -> bool:
        """Return whether so many points and seconds have come since the last True."""
        total, time = self.window.total, float(self.window.time[-1])
        if total - self.memory.get("looked", 0) < points or time - self.memory.get("looked_at", -np.inf) < seconds:
            return False
        self.memory["looked"], self.memory["looked_at"] = total, time
        return True


@dataclass(frozen=True)
class Detector:
    """One analysis that a rule can name."""

    look: Callable[[DetectorInput], list[Sign]]
    need: Need
    options: Mapping[str, float] = field(default_factory=dict)
    metric: tuple[str, ...] = ()
    """Series that it reads if the rule names none."""
    others: tuple[str, ...] = ()
    """Other series that it needs; a `*` is the same instance."""
    across: bool = False
    """Whether it compares ranks."""


def spike(scene: DetectorInput) -> list[Sign]:
    """Detect a spike at the point that confirms it, and its end."""
    from stepscope.analysis.series.spikes import REST, SHARE, WINDOW, may_spike, spikes

    window, memory = scene.window, scene.memory
    fresh, count = window.fresh, len(window)
    if "open" not in memory:
        end = window.value[-(fresh + WINDOW + 2) :]
        low, high = float(end.min()), float(end[-fresh - 1 :].max())
        # The level is never below the lowest value, so a spike rises above that by the share of a spike.
        if (low > 0.0 and high - low < SHARE * low) or not may_spike(window.value, fresh):
            return []
    gone = window.total - count
    found = []
    for each in spikes(window.value).spikes:
        start, over = each.index + gone, each.end + REST + 1
        is_new = each.told >= count - fresh and start > memory.get("last", -1)
        if is_new:
            found.append(Sign(each.told, holds=True, finding=_spike(scene, each)))
            memory["last"] = memory["open"] = start
        if memory.get("open") == start and over < count:
            found.append(Sign(max(over, count - fresh), holds=False))
            del memory["open"]
    if memory.get("open", gone) < gone:  # too old: it has left the window
        del memory["open"]
        found.append(Sign(count - 1, holds=False))
    return found


def _spike(scene: DetectorInput, spike: Any) -> Finding:
    from stepscope.analysis.series.rises import growth

    step = scene.window.step[spike.index]
    where = f" at step {step:.0f}" if np.isfinite(step) else ""
    value = float(scene.window.value[spike.told])
    who = "the loss" if scene.name == "loss" else scene.name
    text = f"{who} jumped from {spike.level:.4g} to {spike.top:.4g}{where}{growth(spike.level, spike.top)}"
    evidence = {"value": value, "level": spike.level, "top": spike.top, "height": spike.height, "window": "40 points"}
    return Finding("loss_spike", text, WARNING, "", {**evidence, "threshold": spike.level * 1.05})


def rise(scene: DetectorInput, severity: str = WARNING) -> list[Sign]:
    """Detect a loss that has risen above its own noise and stays there; a critical rise undoes the training."""
    from stepscope.analysis.series.rises import begun_at, lasting_rise

    window, share = scene.window, scene.options["rise"]
    if not scene.is_due(points=RISE_LOOK):
        return []
    found = lasting_rise(window.value, share)
    if found is None or (severity == CRITICAL and not found.is_divergence(begun_at(window.head))):
        return [Sign(len(window) - 1, holds=False)]
    step = float(window.step[found.index])
    threshold = found.before + share * abs(found.before)
    evidence: dict[str, Any] = {"value": found.now, "before": found.before, "threshold": threshold}
    evidence |= {"noises": found.noises, "since_step": step if np.isfinite(step) else None}
    finding = Finding("divergence", found.text(scene.name, step), severity, "", evidence)
    return [Sign(len(window) - 1, holds=True, finding=finding)]


def plateau(scene: DetectorInput) -> list[Sign]:
    """Detect a loss that has stopped falling."""
    from stepscope.analysis.series.trend import DECREASING, trend

    size = int(scene.options["points"])
    window = scene.window
    if window.total < 1.2 * size or not scene.is_due(points=max(1, size // 20), seconds=FLAT_LOOK):
        return []
    values, steps = window.value[-size:], window.step[-size:]
    line = trend(np.arange(len(values)), values)
    if line.robust_slope is None or line.robust_high is None:
        return []
    level = float(np.median(values[np.isfinite(values)]))
    fallen = -line.robust_slope * len(values) / (abs(level) or 1.0)
    surely = line.direction == DECREASING and line.robust_high < 0
    holds = fallen < scene.options["fall"] and not (surely and fallen > 0)
    first, last = steps[0], steps[-1]
    during = f"steps {first:.0f} to {last:.0f}" if np.isfinite(first + last) else f"the last {len(values)} points"
    text = f"{scene.name} has not fallen during {during}: it stays at {level:.4g}"
    evidence: dict[str, Any] = {"value": level, "fallen_ratio": fallen, "threshold": scene.options["fall"]}
    evidence |= {"p_value": line.p_value, "window": f"{size} points"}
    return [Sign(len(window) - 1, holds, Finding("plateau", text, INFO, "", evidence))]


def _is_long_enough(scene: DetectorInput) -> bool:
    """Return whether the series is long enough to show a slow change, and a check is due."""
    span = float(scene.window.time[-1] - scene.window.time[0])
    return span >= scene.options["seconds"] and scene.is_due(points=12, seconds=max(SLOW_LOOK, SLOWER * span))


def spoken(name: str) -> str:
    """Return the name of a memory series as people say it."""
    kind, _, rest = name.partition("/")
    instance = rest.partition("/")[0]
    owner = {"process": f"rank {instance}", "gpu": f"GPU {instance}"}.get(kind)
    return f"memory of {owner}" if owner and instance.isdecimal() else name


def leak(scene: DetectorInput) -> list[Sign]:
    """Detect memory that grows without end, with the time that is left."""
    from stepscope.analysis.series.forecast import memory_leak

    window = scene.window
    if not _is_long_enough(scene):
        return []
    limits = [scene.last(name) for name in scene.others]
    limit = min((each for each in limits if each), default=None)
    finding = memory_leak(spoken(scene.name), window.time, window.value, limit)
    return [Sign(len(window) - 1, finding is not None, finding)]


def disk_full(scene: DetectorInput) -> list[Sign]:
    """Detect a disk that fills up, and when it will be full."""
    from stepscope.analysis.series.forecast import disk_full as forecast

    window = scene.window
    if not _is_long_enough(scene):
        return []
    finding = forecast(window.time, window.value)
    return [Sign(len(window) - 1, finding is not None and finding.severity == CRITICAL, finding)]


def anomaly(scene: DetectorInput) -> list[Sign]:
    """Detect a value or a level that the series has not had before; reports it once until it is normal again."""
    from stepscope.analysis.series.anomalies import LEVEL, REST, SHORT, is_known, newest

    window, memory = scene.window, scene.memory
    before = memory.get("looked", 0)
    if not scene.is_due(points=10, seconds=ANOMALY_LOOK):
        return []
    fresh = min(window.total - before, len(window))
    found = None if _goes_one_way(window.value) else newest(window.value, fresh, window.total)
    gone = window.total - len(window)
    if found is None or found.score < scene.options["score"]:
        over = memory.get("until", -1) < window.total
        return [Sign(len(window) - 1, holds=False)] if over else []
    reported: list[Any] = memory.setdefault("reported", [])
    goes_on = memory.get("until", -1) >= found.index + gone
    memory["until"] = found.index + gone + REST
    if goes_on or is_known(found, reported):
        return []
    memory["reported"] = [*reported, found][-ANOMALIES:]
    what = "averages" if found.kind == LEVEL else "is"
    span = f" over {SHORT} points" if found.kind == LEVEL else ""
    text = f"{scene.name} {what} {found.value:.4g}{span}; before, it was between {found.low:.4g} and {found.high:.4g}"
    evidence = {"value": found.value, "low": found.low, "high": found.high, "score": found.score, "of": found.kind}
    return [Sign(found.index, holds=True, finding=Finding("anomaly", text, INFO, "", evidence))]


def _goes_one_way(values: Any) -> bool:
    """Return whether values only rise or only fall, as those of counters and schedules do."""
    return bool((values[1:] >= values[:-1]).all() or (values[1:] <= values[:-1]).all())


def change(scene: DetectorInput) -> list[Sign]:
    """Detect a lasting change of level."""
    from stepscope.analysis.series.change_points import LEVEL, change_points

    window, memory = scene.window, scene.memory
    if not scene.is_due(points=20, seconds=5.0):
        return []
    gone = window.total - len(window)
    least = scene.options["share"]
    found = []
    for each in change_points(window.value).changes:
        ratio = abs(each.ratio) if each.ratio is not None else np.inf
        if each.kind != LEVEL or ratio < least or each.index + gone <= memory.get("last", -1):
            continue
        if len(window) - each.index < scene.options["after"]:
            continue
        memory["last"] = each.index + gone
        text = f"{scene.name} changed permanently from {each.before:.4g} to {each.after:.4g}"
        evidence = {"value": each.after, "before": each.before, "score": each.score, "threshold": least}
        found.append(Sign(len(window) - 1, holds=True, finding=Finding("change_point", text, INFO, "", evidence)))
    return found or [Sign(len(window) - 1, holds=False)]


STRAGGLER_POINTS, STRAGGLER_LOOK = 4, 2.0
"""Minimum steps and seconds between two comparisons of ranks."""


def straggler(scene: DetectorInput) -> list[Sign]:
    """Detect the rank that the others wait for; the watcher of its node raises the alert, for all nodes."""
    if not scene.is_due(points=STRAGGLER_POINTS, seconds=STRAGGLER_LOOK):
        return []
    job, most = scene.job, int(scene.options["steps"])
    found = (
        timing_of(rank, series, most, job.node, job.facts.get(rank)) for rank, series in sorted(scene.ranks.items())
    )
    own = job.own = [timing for timing in found if timing is not None]
    if len(own) + len(job.elsewhere) < 2 or len(own) < len(scene.ranks):
        return []
    late = judge([*own, *job.elsewhere], scene.options["share"])
    if late is None or (job.elsewhere and late.first.node != job.node):
        return [Sign(len(scene.window) - 1, holds=False)]
    evidence: dict[str, Any] = {"value": late.confidence_share(), "threshold": scene.options["share"]}
    evidence |= {"rank": late.first.rank, "step_seconds": late.step_seconds, "window": f"{own[0].steps} steps"}
    finding = Finding("straggler", late.text(), WARNING, late.remedy(), late.facts() | evidence)
    return [Sign(len(scene.window) - 1, holds=True, finding=finding)]


MEMORY_LIMITS = ("cgroup/memory_limit_bytes", "memory/total_bytes")
TWO_HOURS = Need(240, seconds=7200.0)

HELP = {
    "spike": "a loss that jumps above its own noise; reported at most one point late",
    "rise": "a loss above its best level by `rise` and by six times its noise, that does not come back",
    "divergence": "the same with a larger `rise`, where at least a tenth of the progress is undone",
    "plateau": "a loss that has not fallen by the share `fall` over `points` points",
    "leak": "process memory that keeps growing, with the time left; evaluated after `seconds`",
    "gpu_leak": "allocated GPU memory that keeps growing, with the time left; evaluated after `seconds`",
    "disk_full": "a disk that will be full within two hours; evaluated after `seconds`",
    "anomaly": "a value, or a level over 20 points, outside the range of the last 2 000 points",
    "change": "a lasting change of level by `share`, reported `after` points later",
    "straggler": "a rank, on any node, for which all others wait `share` of a step, in the newest 12 to `steps` steps",
}
"""What each detector detects, for the documentation."""

DETECTORS: dict[str, Detector] = {
    "spike": Detector(spike, Need(LOSS_POINTS), metric=("loss",)),
    "rise": Detector(rise, Need(LOSS_POINTS), {"rise": 0.1}, ("loss",)),
    "divergence": Detector(partial(rise, severity=CRITICAL), Need(LOSS_POINTS, head=True), {"rise": 0.5}, ("loss",)),
    "plateau": Detector(plateau, Need(5000), {"points": 2000, "fall": 0.001}, ("loss",)),
    "leak": Detector(leak, TWO_HOURS, {"seconds": 600.0}, ("process/*/tree_memory_bytes",), MEMORY_LIMITS),
    "gpu_leak": Detector(
        leak, TWO_HOURS, {"seconds": 600.0}, ("gpu/*/memory_allocated_bytes",), ("gpu/*/memory_total_bytes",)
    ),
    "disk_full": Detector(disk_full, TWO_HOURS, {"seconds": 600.0}, ("disk/free_bytes",)),
    "anomaly": Detector(anomaly, Need(2000), {"score": 1.0}),
    "change": Detector(change, Need(1000), {"share": 0.1, "after": 20}),
    "straggler": Detector(
        straggler,
        Need(1),
        {"steps": 50, "share": 0.1},
        ("step_seconds",),
        ("phase/*", "tokens", "samples"),
        across=True,
    ),
}
"""The detectors that a rule can name in `detect`, with their options and defaults."""
