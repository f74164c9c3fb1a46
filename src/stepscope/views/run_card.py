"""A run in one line of a list (speed, quality, progress, shape of its loss) and its status. Cheap at any length.

All numbers are of the last attempt. Unknown values are None, never 0.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.compare.quantity import is_loss, is_score
from stepscope.analysis.series.forecast import total_steps
from stepscope.core.vocabulary import canonical
from stepscope.store.layout import RunFolder
from stepscope.store.states import read_nodes
from stepscope.views.event_list import EventCount
from stepscope.views.ledger import cost
from stepscope.views.pace import SAMPLES, STEP, StepPace
from stepscope.views.rates import StepTotals, rates
from stepscope.views.run_list import standing
from stepscope.views.sums import lines_of, sums_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.store.reader import Past
    from stepscope.views.buckets import Buckets
    from stepscope.views.sums import Sums

EPOCH, GPU = "epoch", "gpu/mean_utilization_ratio"
SPARK = 40
"""Points of the small curve."""
POINTS = 100
"""Buckets in which the course of a metric is read."""
RECENT = 0.2
"""Share of the attempt's buckets used for the time left."""
SOME = 8
"""Maximum GPUs that are averaged if the run has no average of its own."""
WEIGHTS = {"info": 0, "warning": 1, "critical": 2}


def card(
    past: Past, names: Iterable[str] | None = None, sums: Sums | None = None, lines: Sums | None = None
) -> dict[str, Any]:
    """Return rate, samples per second, loss, its curve, GPU use, and progress.

    Its metrics, their sums, and the lines of `drawn` need not be read again if they are given.
    """
    known = list(past.names() if names is None else names)
    folder = RunFolder(past.path)
    stands = standing(read_nodes(folder)[0])
    events = EventCount(folder)
    events.look()
    loss = headline(known)
    gpus = gpu_names(known)
    wanted = [name for name in (STEP, SAMPLES, EPOCH, loss, *gpus) if name and name in known]
    found = sums_of(past, wanted) if sums is None else {name: sums[name] for name in wanted if name in sums}
    if lines is None:
        lines = lines_of(past, found, drawn(known), POINTS)
    steps = found[STEP].last_attempt() if STEP in found else None
    curve = found.get(loss) if loss else None
    total = total_steps(past.config)
    trained = StepPace.of(found.get(STEP), found.get(SAMPLES)).rates()
    recent = _recent_rate(lines[STEP].last_attempt()) if STEP in lines else None
    return {
        "rate": trained.steps_per_second,
        "recent_rate": recent,
        "samples_per_second": trained.samples_per_second,
        "loss": None if curve is None else _headline(str(loss), curve.last_attempt()),
        "spark": spark(lines[loss]) if loss in lines else [],
        "gpu": _average([found[name] for name in gpus if name in found]),
        "step_seconds": None if steps is None else steps.average(),
        "epoch": found[EPOCH].newest() if EPOCH in found else None,
        "total_steps": total,
        "left": left(stands["step"], total, recent) if stands["state"] == "running" else None,
        "cost": cost(past, stands["duration"]),
        "alert": events.last,
        "problems": len(past.known_problems),
    }


def drawn(names: Iterable[str]) -> list[str]:
    """Return the metrics whose course a card needs."""
    known = set(names)
    return [name for name in (STEP, headline(known)) if name and name in known]


def headline(names: Iterable[str]) -> str | None:
    """Return the metric that a run is judged by first: its loss, else its best known score."""
    ordered = sorted(names)
    tests = (lambda known: known == "loss", is_loss, is_score)
    return next((name for fits in tests for name in ordered if fits(canonical(name))), None)


def gpu_names(names: Iterable[str]) -> list[str]:
    """Return the metrics of GPU use: their mean, else each."""
    known = set(names)
    if GPU in known:
        return [GPU]
    return sorted(name for name in known if name.startswith("gpu/") and name.endswith("/utilization_ratio"))[:SOME]


def left(step: int | None, total: int | None, rate: float | None) -> float | None:
    """Return the seconds until the last step at the present speed."""
    if step is None or not total or not rate:
        return None
    return max(0.0, (total - step - 1) / rate)


def _recent_rate(steps: Buckets) -> float | None:
    """Return recent steps per second of one rank; the time left is based on it."""
    late = steps.select(np.arange(len(steps.time)) >= int(len(steps.time) * (1 - RECENT)) - 1)
    return rates([StepTotals(int(late.finite.sum()), late.total())]).steps_per_second


def _headline(name: str, curve: Buckets) -> dict[str, Any]:
    best = curve.highest() if is_score(canonical(name)) else curve.lowest()
    return {"name": name, "last": curve.newest(), "best": best}


def _average(found: list[Buckets]) -> float | None:
    values = [mean for one in found if (mean := one.last_attempt().average()) is not None]
    return sum(values) / len(values) if values else None


def spark(curve: Buckets, points: int = SPARK) -> list[float | None]:
    """Return the means of consecutive parts of the first rank's values; None for a part without finite points."""
    first = curve.select(curve.rank == curve.rank.min()) if len(curve.rank) else curve
    size = len(first.mean)
    found: list[float | None] = []
    for part in np.array_split(np.arange(size), min(points, size) or 1):
        weight = first.finite[part]
        number = int(weight.sum())
        total = float(np.nansum(np.where(weight > 0, first.mean[part], 0.0) * weight))
        found.append(total / number if number else None)
    return found if size else []


def status(folder: RunFolder, facts: dict[str, Any], events: EventCount, now: float | None = None) -> dict[str, Any]:
    """Return the current state of a run, small enough to send twice a second.

    `facts` are known from its points: rate, recent_rate, epoch, total_steps, names. `events` are polled for more.
    """
    stands = standing(read_nodes(folder)[0])
    events.look()
    step, total = stands["step"], facts.get("total_steps")
    running = stands["state"] == "running"
    return {
        **{key: stands[key] for key in ("state", "cause", "step", "heard", "duration")},
        "now": time.time() if now is None else now,
        "epoch": facts.get("epoch"),
        "rate": facts.get("rate"),
        "total_steps": total,
        "progress": min(1.0, (step + 1) / total) if total and step is not None else None,
        "left": left(step, total, facts.get("recent_rate")) if running else None,
        "names": facts.get("names", 0),
        "events": events.total,
        "firing": len(events.firing),
        "worst": max(events.firing.values(), key=lambda severity: WEIGHTS.get(severity, -1), default=None),
    }
