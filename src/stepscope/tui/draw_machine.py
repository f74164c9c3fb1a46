"""The machine: GPUs, processors, memory, disks, network, processes, with colour by threshold."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from stepscope.core.numbers import format_items, format_portion, format_share, format_value
from stepscope.core.terminal_text import cut, level_of, plain
from stepscope.core.vocabulary import unit_of
from stepscope.tui.draw_sinks import sink_box
from stepscope.tui.frame import box, left, length, meter, right, spark, tiled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.tui.frame import Line, ViewOptions
    from stepscope.views.terminal import TerminalNode, TerminalRank, TerminalScene

FULL, NEARLY = 0.97, 0.9
"""Fill levels of memory or disk that are bad, and that deserve a warning."""
HOT, WARM = 90.0, 80.0
"""Temperatures in °C that are bad, and that deserve a warning."""
IDLE = 0.3
"""Utilization of a GPU in a running training below which a warning is shown."""
WAITING = 0.2
"""Share of time waiting (pressure, iowait) above which a warning is shown."""
GAUGE = 12


def percent(share: float | None) -> str:
    """Return a share in whole percent, six columns wide."""
    return f"{format_share(share):>6}"


def share_style(share: float | None) -> str:
    """Return the style of a fill level."""
    if share is None:
        return "dim"
    return "bad" if share >= FULL else "warn" if share >= NEARLY else "good"


def heat_style(celsius: float | None) -> str:
    """Return the colour of a temperature."""
    if celsius is None:
        return "dim"
    return "bad" if celsius >= HOT else "warn" if celsius >= WARM else ""


def gpu_line(index: int, card: Mapping[str, float], node: TerminalNode, width: int, *, running: bool) -> Line:
    """Return one GPU on one line: use, memory, temperature, power, and its recent past where there is room."""
    use, used, total = card.get("utilization_ratio"), card.get("memory_used_bytes"), card.get("memory_total_bytes")
    share = used / total if used is not None and total else None
    style = "warn" if running and use is not None and use < IDLE else "good"
    wide = GAUGE if width >= 76 else 8
    line: Line = [(f" gpu {index:<2}", "bold"), *meter(use, wide, style), (f"{percent(use)} ", style)]
    line += [(" mem ", "dim"), *meter(share, wide, share_style(share)), (f" {format_portion(used, total):<12}", "")]
    line += [*_heat_and_power(card, width), *throttled(card)]
    rest = width - length(line) - 2
    if rest >= 6:
        trend = node.trends.get(f"gpu/{index}/utilization_ratio", ())
        line.append(("  " + spark(list(trend), min(rest - 1, 60), 1.0), "line0"))
    return line


def _heat_and_power(card: Mapping[str, float], width: int) -> Line:
    heat, power, limit = (card.get(key) for key in ("temperature_celsius", "power_watts", "power_limit_watts"))
    most = f"/{limit:.0f}" if limit and width >= 90 else ""
    watts = "-" if power is None else f"{power:.0f}{most} W"
    at_limit = bool(limit and power and power > limit * 0.98)
    return [
        (right("-" if heat is None else f"{heat:.0f} °C", 6), heat_style(heat)),
        (right(watts, 10 if width >= 90 else 7), "warn" if at_limit else ""),
    ]


def throttled(card: Mapping[str, float]) -> Line:
    """Return a mark if the GPU is throttled by heat or power."""
    why = (key for key, value in card.items() if "throttle" in key and value)
    return [(" slowed", "bad")] if any("thermal" in key or "power" in key for key in why) else []


def cpu_line(node: TerminalNode, width: int) -> Line:
    """Return the processors on one line."""
    values = node.values
    use, waiting = values.get("cpu/usage_ratio"), values.get("cpu/iowait_ratio")
    line: Line = [(" cpu   ", "bold"), *meter(use, GAUGE if width >= 76 else 8, "good"), (f"{percent(use)} ", "")]
    load, stolen, cores = values.get("cpu/load_1m"), values.get("cpu/steal_ratio"), node.cores()
    facts = [(f"{len(cores)} cores", "dim")] if cores else []
    if load is not None:
        facts.append((f"load {load:.2f}", ""))
    if waiting is not None and waiting >= 0.005:
        facts.append((f"iowait {format_share(waiting)}", "warn" if waiting >= WAITING else ""))
    if stolen is not None and stolen >= 0.02:
        facts.append((f"stolen {format_share(stolen)}", "warn"))
    return _with_facts(line, facts, node.trends.get("cpu/usage_ratio", ()), width)


def memory_line(node: TerminalNode, width: int) -> Line:
    """Return the memory on one line: that of the container where it has a limit."""
    values = node.values
    limit, total = values.get("cgroup/memory_limit_bytes"), values.get("memory/total_bytes")
    used = values.get("memory/used_bytes")
    if limit is not None and (total is None or limit < total):
        used, total = values.get("cgroup/memory_used_bytes"), limit
    share = used / total if used is not None and total else values.get("memory/used_ratio")
    line: Line = [(" mem   ", "bold"), *meter(share, GAUGE if width >= 76 else 8, share_style(share))]
    line.append((f"{percent(share)} ", share_style(share)))
    facts = [(format_portion(used, total), "")]
    swap = values.get("swap/used_bytes")
    if swap:
        facts.append((f"swap {format_value(swap, 'bytes')}", "warn"))
    return _with_facts(line, facts, node.trends.get("memory/used_ratio", ()), width)


def _with_facts(line: Line, facts: Sequence[tuple[str, str]], trend: Sequence[float], width: int) -> Line:
    line += [(f" {text} ", style) for text, style in facts]
    rest = width - length(line) - 3
    if rest >= 10:
        line += [(" " * max(0, rest - 60), ""), ("  " + spark(list(trend), min(rest, 60) - 1, 1.0), "line0")]
    return line


def traffic_line(node: TerminalNode, width: int) -> Line:
    """Return disks and network on one line."""
    values = node.values
    read, write = values.get("disk/read_bytes_per_second"), values.get("disk/write_bytes_per_second")
    down, up = values.get("network/received_bytes_per_second"), values.get("network/sent_bytes_per_second")
    busy, used = values.get("disk/busy_ratio"), values.get("disk/used_ratio")
    line: Line = [(" disk  ", "bold"), (f"r {_rate(read)} w {_rate(write)} ", "")]
    if busy is not None:
        line.append((f" busy {format_share(busy)} ", "warn" if busy >= NEARLY else "dim"))
    if used is not None and width >= 90:
        line.append((f" full {format_share(used)} ", share_style(used) if used >= NEARLY else "dim"))
    line += [("  net  ", "bold"), (f"↓ {_rate(down)} ↑ {_rate(up)}", "")]
    waits = [(part, values.get(f"pressure/{part}_some_ratio")) for part in ("cpu", "memory", "io")]
    told = [f"{part} {format_share(value)}" for part, value in waits if value is not None and value >= WAITING]
    waiting = f"   waits for {', '.join(told)}"
    if told and length(line) + len(waiting) <= width:
        line.append((waiting, "warn"))
    return line


def _rate(value: float | None) -> str:
    return left("-" if value is None else format_value(value, "bytes/second"), 11)


def machine_lines(scene: TerminalScene, options: ViewOptions, width: int, rows: int) -> list[Line]:
    """Return the machine in at most `rows` lines: GPUs that fit, then processors, memory, traffic."""
    lines: list[Line] = []
    running = scene.state == "running"
    for number, (_, node) in enumerate(sorted(scene.nodes.items(), reverse=True)):
        if len(scene.nodes) > 1:
            lines.append([(f" {plain(node.name) or f'node {number}'}", "dim")])
        cards = node.gpus(options.gpus)
        room = max(1, rows - len(lines) - 3)
        shown = list(cards.items())[: room if len(cards) <= room else room - 1]
        lines += [gpu_line(index, card, node, width, running=running) for index, card in shown]
        if len(shown) < len(cards):
            lines.append([(f"       and {len(cards) - len(shown)} more GPUs: tab to Machine", "dim")])
        lines += [cpu_line(node, width), memory_line(node, width), traffic_line(node, width)]
        if len(lines) >= rows:
            break
    return lines[:rows]


def machine_rows(scene: TerminalScene, options: ViewOptions) -> int:
    """Return the number of lines that the machine needs."""
    cards = sum(len(node.gpus(options.gpus)) for node in scene.nodes.values())
    return cards + 3 * len(scene.nodes) + (len(scene.nodes) if len(scene.nodes) > 1 else 0)


def machine_view(scene: TerminalScene, width: int, height: int, options: ViewOptions) -> list[Line]:
    """Return the machine view: values, cores, history, processes."""
    rows = machine_lines(scene, options, width - 2, 1000)
    lines = box([("machine", "title")], rows[options.scroll :], width, min(len(rows) + 2, max(5, height // 2)))
    if scene.sinks and height - len(lines) >= 4:
        lines += sink_box(scene.sinks, width, max(4, (height - len(lines)) // 2))
    node = max(scene.nodes.items(), default=(0, None))[1]
    if node is None:
        return lines
    cores = node.cores()
    if len(cores) > 1 and height - len(lines) >= 6:
        lines += core_box(cores, width)
    ranks = [rank for _, rank in sorted(scene.ranks.items()) if rank.values]
    table = process_box(ranks, width, min(len(ranks) + 3, max(4, (height - len(lines)) // 2))) if ranks else []
    room = height - len(lines) - len(table)
    if room >= 5:
        lines += courses(node, width, room)
    lines += table
    if not scene.is_run and height - len(lines) >= 3 and node.absent:
        lines += absent_box(node, width, height - len(lines))
    return lines


def core_box(cores: Sequence[float], width: int) -> list[Line]:
    """Return one cell per processor, coloured by its use."""
    inner = width - 4
    rows: list[Line] = []
    each = max(2, min(9, inner // max(1, len(cores))))
    per_row = max(1, inner // each)
    for start in range(0, min(len(cores), per_row * 4), per_row):
        cells = [(level_of(use) * (each - 1), core_style(use)) for use in cores[start : start + per_row]]
        rows.append([(" ", ""), *(part for cell in cells for part in (cell, (" ", "")))])
    busy = sum(use >= NEARLY for use in cores)
    return box([("cores", "title")], rows, width, len(rows) + 2, [(f"{busy} of {len(cores)} busy", "dim")])


def core_style(use: float) -> str:
    """Return the colour of a processor's use."""
    return "heat4" if use >= NEARLY else "heat2" if use >= 0.6 else "heat0"


COURSES = (
    ("cpu", ("cpu/usage_ratio",), 1.0),
    ("memory", ("memory/used_ratio",), 1.0),
    ("disk", ("disk/read_bytes_per_second", "disk/write_bytes_per_second"), None),
    ("network", ("network/received_bytes_per_second", "network/sent_bytes_per_second"), None),
)
"""History charts of the machine: title, metrics that are summed, and the top of the scale."""


def courses(node: TerminalNode, width: int, height: int) -> list[Line]:
    """Return GPUs, processors, memory, disk and network over the last minutes, as area charts."""
    wanted = list(COURSES)
    cards = [name for name in node.trends if name.startswith("gpu/") and name.endswith("/utilization_ratio")]
    if cards:
        wanted.insert(0, ("gpu", tuple(cards), float(len(cards))))
    wanted = [one for one in wanted if any(name in node.trends for name in one[1])]
    down = max(1, min(-(-len(wanted) // max(1, width // 30)), height // 5))
    across = max(1, min(-(-len(wanted) // down), width // 30))
    return tiled([functools.partial(_course, node, one) for one in wanted], width, height, across, down)


def _course(
    node: TerminalNode, wanted: tuple[str, tuple[str, ...], float | None], width: int, height: int
) -> list[Line]:
    name, sources, top = wanted
    trends = [list(node.trends[source]) for source in sources if source in node.trends]
    size = min(len(trend) for trend in trends)
    sums = [sum(parts) for parts in zip(*(trend[len(trend) - size :] for trend in trends), strict=True)]
    shown = sums[-(width - 2) :]
    highest = top or max(shown, default=0.0) or 1.0
    unit = unit_of(sources[0])
    last = shown[-1] / (top or 1.0) if shown and unit == "ratio" else shown[-1] if shown else None
    end: Line = [(format_share(last) if unit == "ratio" else format_value(last, unit), "bold")]
    return box([(name, "title")], area(shown, width - 2, height - 2, highest), width, height, end)


def area(values: Sequence[float], width: int, height: int, top: float) -> list[Line]:
    """Return a filled curve from 0 to `top`, the newest at the right."""
    marks = " ▁▂▃▄▅▆▇█"
    finite = [value if math.isfinite(value) else 0.0 for value in values]
    levels = [max(0, min(height * 8, round(value / top * height * 8))) for value in finite]
    bases = range((height - 1) * 8, -1, -8)
    texts = ("".join(marks[max(0, min(8, level - base))] for level in levels) for base in bases)
    return [[(text.rjust(width), "line0")] for text in texts]


def process_box(ranks: Sequence[TerminalRank], width: int, height: int) -> list[Line]:
    """Return the processes of the training."""
    titles = f" {'rank':>4} {'pid':>8} {'state':<10} {'cpu':>6} {'memory':>11} {'threads':>8}"
    rows: list[Line] = [[(titles, "dim")]]
    for rank in ranks:
        memory = rank.values.get("tree_memory_bytes", rank.values.get("memory_bytes"))
        cpu = rank.values.get("tree_cpu_ratio", rank.values.get("cpu_ratio"))
        threads = rank.values.get("threads")
        text = f" {rank.rank:>4} {rank.pid or '-':>8} {cut(plain(rank.state), 10):<10} {percent(cpu):>6} "
        text += f"{format_value(memory, 'bytes'):>11} {'-' if threads is None else f'{threads:.0f}':>8}"
        rows.append([(text, "" if rank.state in {"running", "finished"} else "bad")])
    return box([("processes", "title")], rows, width, height, [(format_items(len(ranks), "rank"), "dim")])


def absent_box(node: TerminalNode, width: int, height: int) -> list[Line]:
    """Return the missing values of this machine, and why."""
    rows: list[Line] = [
        [(f" {cut(plain(what), 24):<24} ", ""), (cut(plain(why), width - 30), "dim")]
        for what, why in sorted(node.absent.items(), key=lambda item: not item[0].startswith("gpu"))
    ]
    return box([("not available", "title")], rows, width, min(height, len(rows) + 2))
