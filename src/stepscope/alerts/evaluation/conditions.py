"""Evaluate conditions on all new points of a series at once, and on many series with the same times together.

A condition is 1, 0 or NaN for unknown: a window is not full yet, or a metric is missing. Arrays have a row per series
and a column per point; a window is given by the indices `low` and `high` of the stored points.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import add, eq, ge, gt, le, lt, mul, ne, sub
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from stepscope.alerts.rules import expression
from stepscope.alerts.rules.expression import POINTS, STEPS, TIME, CallNode, MetricNode, Node, RuleWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.alerts.evaluation.series_window import SeriesWindow
    from stepscope.core.arrays import Floats

    Places = NDArray[np.intp]
    Binary = Callable[[Floats, Floats], Any]

FULL = 0.95
"""A window of time or steps counts as full when the series covers this share of it."""
FINITE = 0.5
"""Share of a window's values that must be finite for its mean, median or percentile."""
CHUNK = 2**18
"""Values that are sorted at a time: 2 MiB."""
FEW = 4
"""Up to this many new points, windows are sorted one by one."""
BASELINE_PARTS = 20
"""A baseline is computed again when one part in this many of its points is new."""
LEAST_BASELINE = 10
"""Minimum points of a baseline, or a quarter of its window if that is more."""


@dataclass
class Stack:
    """Several series of one metric whose points have the same times, as a matrix of rows by points."""

    windows: Sequence[SeriesWindow]
    value: Floats
    step: Floats
    time: Floats

    @classmethod
    def of(cls, windows: Sequence[SeriesWindow], most: int | None = None) -> Stack:
        """Stack series with the same axis: their last `most` points, or all."""
        first = windows[0]
        last = slice(max(0, len(first) - most) if most is not None else 0, None)
        value = first.value[None, last] if len(windows) == 1 else np.stack([window.value[last] for window in windows])
        return cls(windows, value, first.step[last], first.time[last])


@dataclass
class EvaluationFrame:
    """The data that a condition is evaluated on: the series of each metric, and which points are new."""

    stacks: Mapping[str, Stack | None]
    driver: str
    """The metric whose new points are evaluated."""
    fresh: int
    """Number of new points."""
    frozen: list[dict[CallNode, float]] = field(default_factory=list)
    """For each row, the baselines that stay fixed while its alert fires."""
    baselines: dict[CallNode, Floats] = field(default_factory=dict)
    """The computed baselines by row and point, which may be frozen next."""
    lazy: bool = False
    """Skip parts that cannot change the result, even if they contain a baseline."""

    @property
    def driving(self) -> Stack:
        """The series of the driving metric, which always exist."""
        return cast("Stack", self.stacks[self.driver])

    @property
    def rows(self) -> int:
        """Return the number of series that are evaluated together."""
        return len(self.driving.windows)

    def ends(self, stack: Stack) -> Places:
        """Return, for each new point, how many points of a series had arrived by then."""
        if self.driving.windows[0].axis == stack.windows[0].axis:
            return np.arange(len(stack.time) - self.fresh + 1, len(stack.time) + 1)
        times = self.driving.time
        return np.searchsorted(stack.time, times[len(times) - self.fresh :], side="right")


def evaluate(node: Node, frame: EvaluationFrame) -> Floats:
    """Return the value of a condition, or of a part of it, at each new point: an array of rows by points."""
    with np.errstate(all="ignore"):
        return _value(node, frame)


def _value(node: Node, frame: EvaluationFrame) -> Floats:
    if isinstance(node, expression.NumberNode):
        return np.full((1, 1), node.value)
    if isinstance(node, MetricNode):
        return _last(frame.stacks.get(node.name), frame)
    if isinstance(node, CallNode):
        return _call(node, frame)
    first, *others = node.operands
    left = _value(first, frame)
    if frame.lazy and node.sign == "and" and not left.any():  # NaN, which is unknown, is nonzero
        return left
    return _operation(node.sign, [left, *(_value(other, frame) for other in others)])


def _unknown(frame: EvaluationFrame) -> Floats:
    return np.full((frame.rows, frame.fresh), np.nan)


def _last(stack: Stack | None, frame: EvaluationFrame) -> Floats:
    if stack is None:
        return _unknown(frame)
    high = frame.ends(stack)
    found = stack.value[:, np.maximum(high - 1, 0)]
    return np.where(high > 0, found, np.nan)


def _operation(sign: str, given: list[Floats]) -> Floats:
    left = given[0]
    if sign == "not":
        return 1.0 - left
    right = given[1]
    if sign == "and":  # false and unknown is false
        return np.where((left == 0) | (right == 0), 0.0, left * right)
    if sign == "or":
        return np.where((left == 1) | (right == 1), 1.0, left + right)
    if sign in _ARITHMETIC:
        return np.asarray(_ARITHMETIC[sign](left, right))
    truth = _COMPARISONS[sign](left, right).astype(np.float64)
    return np.where(np.isnan(left) | np.isnan(right), np.nan, truth)


def _divide(left: Floats, right: Floats) -> Floats:
    return np.where(right == 0, np.nan, left / right)


_ARITHMETIC: dict[str, Binary] = {"+": add, "-": sub, "*": mul, "/": _divide}
_COMPARISONS: dict[str, Binary] = {">": gt, "<": lt, ">=": ge, "<=": le, "==": eq, "!=": ne}


def _call(node: CallNode, frame: EvaluationFrame) -> Floats:
    if node.name == "finite":
        return _finite(node.of, frame)
    if node.name in {"abs", "last"}:
        value = _value(node.of, frame)
        return np.abs(value) if node.name == "abs" else value
    stack = _series(node.of, frame)
    if stack is None:
        return _unknown(frame)
    high = frame.ends(stack)
    if node.name == "baseline":
        return _baseline(node, stack, high, frame)
    if node.name == "first":
        return _first(node, stack, frame)
    if node.name in {"highest", "lowest"}:
        return _extreme(node.name, stack, high)
    if node.name == "zscore":
        return _zscore(stack, high, int(node.windows[0].size))
    low, full = _bounds(stack, high, node.windows[0])
    found = _REDUCTIONS[node.name](stack, low, high, node)
    return found if node.name == "count" else np.where(full, found, np.nan)


def _finite(node: Node, frame: EvaluationFrame) -> Floats:
    """Return whether a value is finite; unknown only if there is no value."""
    found = np.isfinite(_value(node, frame)).astype(np.float64)
    for name in expression.metrics_of(node):
        stack = frame.stacks.get(name)
        if stack is None:
            return _unknown(frame)
        found = np.where(frame.ends(stack) > 0, found, np.nan)
    return found


def _series(node: Node, frame: EvaluationFrame) -> Stack | None:
    """Return the series of a metric, or of arithmetic on metrics at the points of the driving one."""
    if isinstance(node, MetricNode):
        return frame.stacks.get(node.name)
    driver = frame.driving
    all_points = EvaluationFrame(frame.stacks, frame.driver, len(driver.time))
    value = np.broadcast_to(_value(node, all_points), (len(driver.windows), len(driver.time)))
    return Stack(driver.windows, value, driver.step, driver.time)


def _bounds(stack: Stack, high: Places, window: RuleWindow) -> tuple[Places, Any]:
    """Return where the window of each point begins, and whether it is full."""
    first = stack.windows[0]
    gone = first.total - len(stack.time)
    if window.unit == POINTS:
        size = max(1, int(window.size))
        return np.maximum(high - size, 0), high + gone >= size
    axis = stack.step if window.unit == STEPS else stack.time
    last = axis[np.maximum(high - 1, 0)]
    start = last - window.size
    low = np.maximum.accumulate(np.searchsorted(axis, start, side="right"))  # steps may go back
    began = first.first_step if window.unit == STEPS else first.began
    return np.minimum(low, np.maximum(high - 1, 0)), (last - began >= FULL * window.size - 1e-9) & (high > 0)


def _sums(stack: Stack, low: Places, high: Places, *, squares: bool = False) -> tuple[Floats, ...]:
    """Return count and sum (and sum of squares) of the finite values in each window, and the value subtracted first.

    Subtracting a value near the others keeps the sums exact.
    """
    start = int(low.min(initial=len(stack.time)))
    value = stack.value[:, start:]
    good = np.isfinite(value)
    low, high = low - start, high - start
    if good.all():
        around = value[:, -1:]
        rest = value - around
        count = np.broadcast_to((high - low).astype(np.float64), (1, len(low)))
    else:
        around = np.where(good[:, -1:], value[:, -1:], 0.0)
        rest = np.where(good, value - around, 0.0)
        count = _between(good, low, high)
    total = _between(rest, low, high)
    return (count, total, _between(rest * rest, low, high), around) if squares else (count, total, around)


def _between(values: Any, low: Places, high: Places) -> Floats:
    """Return the sum of each window; its bounds never decrease, so each differs from the first by running sums."""
    if not len(low):
        return np.zeros((len(values), 0))
    first = values[:, low[0] : high[0]].sum(axis=1, dtype=np.float64)
    return np.asarray(first[:, None] + _running(values, high) - _running(values, low))


def _running(values: Any, ends: Places) -> Floats:
    """Return the sums of the values from the first end to each end."""
    total = np.zeros((len(values), int(ends[-1] - ends[0]) + 1))
    np.cumsum(values[:, ends[0] : ends[-1]], axis=1, out=total[:, 1:], dtype=np.float64)
    return total[:, ends - ends[0]]


def _mean(stack: Stack, low: Places, high: Places, _: CallNode) -> Floats:
    count, total, around = _sums(stack, low, high)
    return np.asarray(around + total / np.where(count >= _enough(high - low), count, np.nan))


def _sum(stack: Stack, low: Places, high: Places, _: CallNode) -> Floats:
    count, total, around = _sums(stack, low, high)
    return np.asarray(around * count + total)


def _std(stack: Stack, low: Places, high: Places, _: CallNode) -> Floats:
    count, total, squares, *_rest = _sums(stack, low, high, squares=True)
    return _deviation(count, total, squares)


def _enough(size: Any) -> Any:
    """Return how many values of a window must be finite."""
    return np.maximum(1.0, FINITE * size)


def _deviation(count: Floats, total: Floats, squares: Floats) -> Floats:
    count = np.where(count > 0, count, np.nan)
    return np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0.0))


def _count(stack: Stack, low: Places, high: Places, _: CallNode) -> Floats:
    return np.broadcast_to(_sums(stack, low, high)[0], (len(stack.windows), len(low)))


def _highest_of(value: Floats, low: Places, high: Places) -> Floats:
    """Return the highest finite value of each window, from a sparse table: maxima of 1, 2, 4, 8 … neighbours."""
    start = int(low.min(initial=0)) if len(low) else 0
    level = np.where(np.isfinite(value[:, start:]), value[:, start:], -np.inf)
    low, size = low - start, high - low
    found = np.full((len(value), len(low)), -np.inf)
    power = np.where(size > 0, np.log2(np.maximum(size, 1)).astype(np.intp), -1)
    for exponent in range(int(power.max(initial=-1)) + 1):
        mine = power == exponent
        if mine.any():
            one = level[:, low[mine]]
            found[:, mine] = np.maximum(one, level[:, low[mine] + size[mine] - (1 << exponent)])
        reach = 1 << exponent
        if reach < level.shape[1]:
            level = np.maximum(level[:, :-reach], level[:, reach:])
    return np.where(np.isfinite(found), found, np.nan)


def _extremes(stack: Stack, low: Places, high: Places, node: CallNode) -> Floats:
    return _highest_of(stack.value, low, high) if node.name == "max" else -_highest_of(-stack.value, low, high)


def _median(stack: Stack, low: Places, high: Places, node: CallNode) -> Floats:
    """Return the quantile of each window, interpolated as numpy does: the only function that sorts."""
    share = node.share / 100 if node.name == "percentile" else 0.5
    found = np.full((len(stack.value), len(low)), np.nan)
    size = int(high[-1] - low[-1]) if len(low) else 0
    if len(low) <= FEW:
        for at, (first, last) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            if last > first:
                found[:, at] = _quantile(stack.value[:, first:last], share)
        return found
    full = (high - low == size) & (size > 0)
    if full.any():
        starts = low[full] - low[full][0]
        views = np.lib.stride_tricks.sliding_window_view(stack.value[:, low[full][0] : high[-1]], size, axis=1)
        if not np.array_equal(starts, np.arange(views.shape[1])):  # windows do not begin at every point
            views = views[:, starts]
        some = max(1, CHUNK // (views.shape[1] * size))
        for row in range(0, len(views), some):
            found[row : row + some, full] = _quantile(views[row : row + some], share)
    for at in np.flatnonzero(~full & (high > low)).tolist():
        found[:, at] = _quantile(stack.value[:, low[at] : high[at]], share)
    return found


def _quantile(values: Floats, share: float) -> Floats:
    """Return a quantile of the finite values along the last axis; NaN without any."""
    size = values.shape[-1]
    place = share * (size - 1)
    below = int(place)
    above = min(below + 1, size - 1)
    ordered = np.partition(values, (below, above), axis=-1)
    found = ordered[..., below] + (place - below) * (ordered[..., above] - ordered[..., below])
    good = np.isfinite(values)
    if not good.all():
        bad = ~good.all(axis=-1)
        rows = [row[np.isfinite(row)] for row in values[bad]]
        found[bad] = [np.quantile(row, share) if len(row) >= _enough(size) else np.nan for row in rows]
    return np.asarray(found)


def _slope(stack: Stack, low: Places, high: Places, node: CallNode) -> Floats:
    start = int(low.min(initial=len(stack.time)))
    axis = (stack.step if node.windows[0].unit != TIME and np.isfinite(stack.step).all() else stack.time)[start:]
    value, low, high = stack.value[:, start:], low - start, high - start
    good = np.isfinite(value)
    all_good = bool(good.all())
    x = (axis - axis[-1])[None, :]
    y = value - np.where(good[:, -1:], value[:, -1:], 0.0)
    if not all_good:
        x, y = np.where(good, x, 0.0), np.where(good, y, 0.0)
    n = (high - low)[None, :].astype(np.float64) if all_good else _between(good, low, high)
    sx, sxx = _between(x, low, high), _between(x * x, low, high)
    below = n * sxx - sx * sx
    above = n * _between(x * y, low, high) - sx * _between(y, low, high)
    return np.where(below > 0, above / np.where(below > 0, below, 1.0), np.nan)


def _rate(stack: Stack, low: Places, high: Places, _: CallNode) -> Floats:
    before = np.concatenate([stack.value[:, :1], stack.value[:, :-1]], axis=1)
    grown = np.where(stack.value >= before, stack.value - before, stack.value)
    grown[:, 0] = 0.0
    grown = np.where(np.isfinite(grown), grown, 0.0)
    total = _between(grown, np.minimum(low + 1, high), high)
    seconds = stack.time[np.maximum(high - 1, 0)] - stack.time[np.minimum(low, len(stack.time) - 1)]
    return np.where(seconds > 0, total / np.where(seconds > 0, seconds, 1.0), np.nan)


_REDUCTIONS = {
    "mean": _mean,
    "sum": _sum,
    "std": _std,
    "count": _count,
    "max": _extremes,
    "min": _extremes,
    "median": _median,
    "percentile": _median,
    "slope": _slope,
    "rate": _rate,
}


def _zscore(stack: Stack, high: Places, size: int) -> Floats:
    """Return how far each value is from the mean of the window before it, in standard deviations."""
    before = np.maximum(high - 1, 0)
    low = np.maximum(before - size, 0)
    count, total, squares, around = _sums(stack, low, before, squares=True)
    spread = _deviation(count, total, squares)
    away = stack.value[:, before] - around - total / np.where(count > 0, count, np.nan)
    full = before + stack.windows[0].total - len(stack.time) >= size
    return np.where(full & (spread > 0), away / np.where(spread > 0, spread, 1.0), np.nan)


def baseline_stride(size: int) -> int:
    """Return after how many new points a baseline of `size` points is computed again: it moves slowly."""
    return max(1, size // BASELINE_PARTS)


def _baseline(node: CallNode, stack: Stack, high: Places, frame: EvaluationFrame) -> Floats:
    size, gap = (int(window.size) for window in node.windows)
    gone = stack.windows[0].total - len(stack.time)
    end = np.maximum(high - gap, 0)
    end = np.maximum(end - (end + gone) % baseline_stride(size), 0)
    renewed, which = np.unique(end, return_inverse=True)
    low = np.maximum(renewed - size, 0)
    found = _median(stack, low, renewed, node)
    found = np.where(renewed - low >= max(LEAST_BASELINE, size // 4), found, np.nan)[:, which]
    for row, kept in enumerate(frame.frozen):
        if node in kept:
            found[row] = kept[node]
    frame.baselines[node] = found
    return found


def _first(node: CallNode, stack: Stack, frame: EvaluationFrame) -> Floats:
    size, skip = (int(window.size) for window in node.windows)
    found = np.full((len(stack.windows), 1), np.nan)
    for row, window in enumerate(stack.windows):
        values = window.head[skip : skip + size]
        values = values[np.isfinite(values)]
        if len(values) and window.total >= skip + size:
            found[row] = np.median(values)
    return np.broadcast_to(found, (len(found), frame.fresh))


def _extreme(name: str, stack: Stack, high: Places) -> Floats:
    values = stack.value if name == "highest" else -stack.value
    before = [window.highest if name == "highest" else -window.lowest for window in stack.windows]
    running = np.maximum.accumulate(np.where(np.isfinite(values), values, -np.inf), axis=1)
    found = np.maximum(running[:, np.maximum(high - 1, 0)], np.asarray(before)[:, None])
    found = np.where(np.isfinite(found), found, np.nan)
    return found if name == "highest" else -found
