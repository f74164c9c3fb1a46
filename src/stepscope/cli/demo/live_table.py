"""Draw a view of a live run as lines of styled text: one grid of label, value, note and picture."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from stepscope.cli.text.plain import BAD, LEVELS, bar, cut, plain
from stepscope.core.numbers import format_count, format_value
from stepscope.core.vocabulary import MIB

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.views.live_run import Curve, Happening, Phase, View

    Span = tuple[str, str]
    """Text and its style, as `Paint` takes it."""
    Line = list[Span]

LABEL, VALUE, NOTE = 14, 10, 16
EDGE = 2
"""Columns at the left of the picture that separate it from the note."""
LONGER = 1.5
"""A phase that takes so many times as long as usual is marked."""
JUMP = 3.0
"""A point of a curve so many times as high as those before it is marked."""
LOG_FROM = 5.0
"""A loss or gradient whose highest value is so many times its lowest is drawn on a logarithmic scale."""
LOGARITHMIC = {"loss", "grad_norm"}
LEAST_SPAN = 0.05
"""A curve that varies by less than this share of its highest value is drawn as flat as it is."""
NAMES = {
    "learning_rate": "learning rate",
    "grad_norm": "gradient norm",
    "process/memory_bytes": "memory",
}
COLOURS = {"data": "yellow", "forward": "cyan", "backward": "blue", "optimizer": "green"}
STATES = {"running": "green", "finished": "cyan"}
SMALLEST = (40, 10)
ROOMY = 28
"""Rows from which sections are set apart, and the loss gets a chart where there is still room."""


def draw(view: View, width: int, height: int) -> list[Line]:
    """Return the lines of the table; never more than fit a terminal of that size."""
    width, rows = max(width, SMALLEST[0]), max(height, SMALLEST[1])
    roomy = height >= ROOMY
    blank: list[Line] = [[]] if roomy else []
    top = [_header(view, width), *blank, _progress(view, width), *_metrics(view, width)]
    step = [*blank, _rule("one step", _rates(view), width), *[_phase(phase, width) for phase in view.phases]]
    bottom = [*blank, _rule("recording", "", width), _cost(view, width)]
    free = rows - len(top) - len(step) - len(bottom) - len(blank) - 1
    events = [_event(one, width) for one in view.happenings[-max(free, 1) :]] or [[(" nothing yet", "dim")]]
    chart_rows = min(10, free - len(events) - len(blank) - 1)
    chart = [*blank, *_chart(view, width, chart_rows)] if roomy and chart_rows >= 4 else []
    lines = [*top, *chart, *step, *blank, _rule("events", "", width), *events]
    return [*lines[: rows - len(bottom)], *bottom]


def one_line(view: View) -> str:
    """Return the state of a run as one line, for logs and pipes."""
    of = f"/{view.total}" if view.total is not None else ""
    parts = [clock(view.elapsed), f"step {view.steps}{of}"]
    if view.rates.steps_per_second is not None:
        parts.append(format_value(view.rates.steps_per_second, "steps/second"))
    for name in ("loss", "accuracy", "process/memory_bytes"):
        curve = view.curve(name)
        if curve is not None:
            parts.append(f"{_label(name)} {_figure(name, curve.last)}")
    if view.phases:
        longest = max(view.phases, key=lambda phase: phase.share)
        parts.append(f"{longest.name} {longest.share * 100:.0f} % of the step")
    return "  ".join(parts)


def clock(seconds: float) -> str:
    """Return a duration as m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def step_range(happening: Happening) -> str:
    """Return at which steps something happened."""
    if happening.step is None:
        return ""
    if happening.until is not None and happening.until > happening.step:
        return f"{happening.step}-{happening.until}"
    return str(happening.step)


def _header(view: View, width: int) -> Line:
    left = [(" stepscope", "bold"), (f" {view.project} ", "bold"), (view.id, "dim")]
    time = clock(view.elapsed) + (f", {clock(view.left)} left" if view.left is not None else "")
    right = [("● ", STATES.get(view.state, "red")), (view.state, ""), (f"  {time}", "dim")]
    space = width - _length(left) - _length(right) - 1
    if space < 1:
        left, space = left[:1], width - _length(left[:1]) - _length(right) - 1
    return [*left, (" " * max(space, 1), ""), *right]


def _rule(title: str, right: str, width: int) -> Line:
    rest = f" {right} ─" if right else ""
    room = width - len(title) - 4 - len(rest)
    if room < 1:
        return [(f" {title}", "bold")]
    return [("─ ", "dim"), (title, "bold"), (f" {'─' * room}{rest} "[: width - len(title) - 2], "dim")]


def _rates(view: View) -> str:
    units = {"steps_per_second": "steps/second", "samples_per_second": "samples/second"}
    return ", ".join(format_value(rate, units[key]) for key, rate in view.rates._asdict().items() if rate is not None)


def _cells(label: str, value: str, note: Line, picture: Line) -> Line:
    """Return one row of the grid."""
    space = max(NOTE - _length(note), 0) + EDGE
    return [(f" {label:<{LABEL}}", "dim"), (f"{value:>{VALUE}}", ""), ("  ", ""), *note, (" " * space, ""), *picture]


def _picture_width(width: int) -> int:
    return max(width - 1 - LABEL - VALUE - 2 - NOTE - EDGE - 1, 1)


def _progress(view: View, width: int) -> Line:
    room = _picture_width(width)
    if not view.total:
        return _cells("step", str(view.steps), [], [])
    share = min(view.steps / view.total, 1.0)
    whole, half = divmod(int(share * room * 2), 2)
    marks = {int(one.step * room / view.total) for one in view.happenings if one.step is not None}
    line: Line = []
    for place in range(room):
        style = "cyan" if place < whole + half else "dim"
        glyph = "━" if place < whole else "╸" if place == whole and half else "─"
        line.append((glyph, "yellow" if place in marks else style))
    return _cells("step", str(view.steps), [(f"of {view.total}, {share * 100:.0f} %", "dim")], _joined(line))


def _metrics(view: View, width: int) -> list[Line]:
    lines = []
    for curve in view.curves:
        note = _note(view, curve)
        picture = _spark(curve, view.total, _picture_width(width))
        lines.append(_cells(_label(curve.name), _figure(curve.name, curve.last), note, picture))
    return lines


def _note(view: View, curve: Curve) -> Line:
    if curve.best is not None:
        return [(f"best {_figure(curve.name, curve.best)}", "dim")]
    if curve.name != "process/memory_bytes" or view.memory_trend is None:
        return []
    per_minute = view.memory_trend * 60
    if abs(per_minute) < 0.02 * curve.last:
        return [("steady", "dim")]
    return [(f"{per_minute / MIB:+.0f} MiB/min", "yellow" if per_minute > 0 else "dim")]


def _label(name: str) -> str:
    return NAMES.get(name, name)


def _figure(name: str, value: float) -> str:
    """Return a figure that keeps its number of digits from one moment to the next."""
    if not math.isfinite(value):
        return format_value(value)
    if name == "accuracy":
        return f"{value * 100:.1f} %"
    if name.endswith("bytes"):
        return f"{value / MIB:.1f} MiB"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.2e}"


def _spark(curve: Curve, total: int | None, room: int) -> Line:
    """Return a curve over the whole run, one character per column, on the scale of the progress bar.

    Columns that jump are drawn at full height and left out of the scale: the rest keeps its shape.
    """
    highest, bad = _columns(curve, total, room)
    marked = _jumps(highest)
    heights = _heights(curve.name, highest, len(LEVELS), ~marked)
    line: Line = []
    for height, mark, broken in zip(heights, marked, bad, strict=True):
        if broken:
            line.append((BAD, "red"))
        elif height < 0:
            line.append((" ", ""))
        else:
            line.append((LEVELS[max(int(height) - 1, 0)], "red" if mark else "cyan"))
    return _joined(line)


def _heights(
    name: str, highest: NDArray[np.float64], levels: int, scaled: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """Return the height of each column, 1 to `levels`, -1 for none; `scaled` are those that the scale spans."""
    there = np.isfinite(highest)
    heights = np.full(len(highest), -1, np.int64)
    inside = there if scaled is None else there & scaled
    if not inside.any():
        return heights
    values = np.log(np.where(there, highest, 1)) if _is_log(name, highest[inside]) else highest
    low, high = float(values[inside].min()), float(values[inside].max())
    span = max(high - low, LEAST_SPAN * abs(high)) or 1.0
    share = np.clip((values[there] - low) / span, 0, 1)
    heights[there] = 1 + np.round(share * (levels - 1)).astype(np.int64)
    return heights


def _is_log(name: str, values: NDArray[np.float64]) -> bool:
    return name in LOGARITHMIC and bool(values.min() > 0 and values.max() / values.min() > LOG_FROM)


def _columns(curve: Curve, total: int | None, room: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return of each column the highest value, NaN for none, and whether it has one that is not finite.

    Columns that no step falls into, in a run of fewer steps than columns, show the value before them.
    """
    count = max(total or 0, int(curve.step.max()) + 1, 1)
    column = np.clip(curve.step * room // count, 0, room - 1)
    finite = np.isfinite(curve.value)
    highest = np.full(room, -np.inf)
    np.maximum.at(highest, column[finite], curve.value[finite])
    bad = np.zeros(room, bool)
    bad[column[~finite]] = True
    last = int(column.max())
    for place in range(1, last + 1):
        if np.isinf(highest[place]) and not bad[place]:
            highest[place] = highest[place - 1]
    highest[np.isinf(highest)] = np.nan
    return highest, bad


def _jumps(highest: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Say which columns stand far above the eight before them."""
    marked = np.zeros(len(highest), bool)
    for place in range(3, len(highest)):
        before = highest[max(place - 8, 0) : place]
        before = before[np.isfinite(before)]
        usual = float(np.median(before)) if len(before) else 0.0
        marked[place] = usual > 0 and highest[place] > JUMP * usual
    return marked


def _chart(view: View, width: int, rows: int) -> list[Line]:
    """Return the loss as a chart of several rows."""
    curve = view.curve("loss")
    if curve is None or rows < 4:
        return []
    axis = 9
    room = width - axis - 3
    highest, _ = _columns(curve, view.total, room)
    heights, marked = _heights(curve.name, highest, (rows - 1) * 8), _jumps(highest)
    shown = highest[np.isfinite(highest)]
    if not len(shown):
        return []
    low, high = float(shown.min()), float(shown.max())
    scale = "log scale, " if _is_log(curve.name, shown) else ""
    lines = [_rule("loss", f"{scale}highest of each column", width)]
    for row in range(rows - 2, -1, -1):
        label = _figure("loss", high) if row == rows - 2 else _figure("loss", low) if row == 0 else ""
        cells: Line = [(f"{label:>{axis}} ", "dim"), ("│" if not label else "┤", "dim")]
        for height, mark in zip(heights, marked, strict=True):
            part = min(max(int(height) - row * 8, 0), 8)
            cells.append((LEVELS[part - 1] if part else " ", "red" if mark else "cyan"))
        lines.append(_joined(cells))
    return lines


def _phase(phase: Phase, width: int) -> Line:
    room = _picture_width(width)
    note: Line = [(f"{phase.share * 100:3.0f} %", "dim")]
    unusual = phase.excess is not None and phase.excess >= LONGER and phase.share >= 0.02
    if unusual and phase.excess is not None:
        note.append((f"  {phase.excess:.{0 if phase.excess >= 10 else 1}f}x usual", "red"))
    picture = [(bar(phase.share, room).rstrip(), "red" if unusual else COLOURS.get(phase.name, "dim"))]
    return _cells(cut(plain(phase.name), LABEL), f"{phase.seconds * 1e3:.1f} ms", note, picture)


def _event(happening: Happening, width: int) -> Line:
    times = f" ({happening.count} times)" if happening.count > 1 else ""
    return [
        (f" {cut(plain(happening.label), LABEL):<{LABEL}}", "yellow"),
        (f"{step_range(happening):>{VALUE}}", ""),
        ("  " + cut(plain(happening.why) + times, width - 1 - LABEL - VALUE - 2), "dim"),
    ]


def _cost(view: View, width: int) -> Line:
    cost = view.cost
    value = "-" if cost.log_seconds is None else f"{cost.log_seconds * 1e6:.1f} µs"
    share = "" if cost.share is None else f"{cost.share * 100:.3f} % of time"
    drops = ("0 dropped", "dim") if not cost.drops else (f"{format_count(cost.drops)} dropped", "red")
    picture = [(f"{format_count(cost.rows)} rows, ", "dim"), drops]
    return _cut(_cells("cost per row", value, [(share, "dim")], picture), width)


def _length(line: Line) -> int:
    return sum(len(text) for text, _ in line)


def _cut(line: Line, width: int) -> Line:
    kept: Line = []
    for text, style in line:
        kept.append((text[: max(width - _length(kept), 0)], style))
    return kept


def _joined(line: Line) -> Line:
    """Return the line with neighbours of one style as one."""
    joined: Line = []
    for text, style in line:
        if joined and joined[-1][1] == style:
            joined[-1] = (joined[-1][0] + text, style)
        else:
            joined.append((text, style))
    return joined
