"""The ranks of a run: the worst first or by node, how late each is in its recent steps, and one beside the median."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from stepscope.core.node_names import short_node
from stepscope.core.numbers import ABSENT, format_count, format_items, format_value
from stepscope.core.terminal_text import cut, plain
from stepscope.tui.frame import beside, box, filled, left, right
from stepscope.tui.theme import phase_style
from stepscope.views.ranks import LATE_SECONDS, LATE_SHARE
from stepscope.views.terminal_ranks import RankLateness, RankScene, rank_scene

if TYPE_CHECKING:
    from stepscope.tui.frame import Line, ViewOptions
    from stepscope.views.terminal import TerminalScene

SHADES = (0.05, 0.1, 0.2, 0.3, 0.5)
"""Shares of a step by which a rank is late, from which on a cell takes the next colour."""
LEGEND: Line = [
    *(("■", "heat0"), (" on time ", "dim")),
    *(("■", "heat2"), (" late by 10 % ", "dim")),
    *(("■", "heat4"), (" 30 % ", "dim")),
    *(("■", "heat5"), (" half a step", "dim")),
]
MANY = 32
"""Ranks from which on they are grouped by node, if there are several."""
WIDE, WIDER = 110, 150
"""Columns from which on the selected rank stands beside the list of nodes, and of ranks."""
ASIDE = 46
"""Columns of the selected rank there."""
MOST_LINES = 3
"""Lines of the verdict on a hang."""


def heat_of(late: float | None, usual: float) -> str:
    """Return the colour of a rank that is late by so many seconds of a usual step."""
    if late is None or late != late or usual <= 0:  # noqa: PLR0124 - NaN
        return "faint"
    return f"heat{sum(late / usual >= limit for limit in SHADES)}"


def is_grouped(scene: TerminalScene, options: ViewOptions) -> bool:
    """Return whether a line stands for a node rather than for a rank."""
    nodes = {rank.node for rank in scene.ranks.values()}
    return len(nodes) > 1 and (len(scene.ranks) > MANY if options.grouped is None else options.grouped)


def lines_of(scene: TerminalScene, options: ViewOptions) -> int:
    """Return how many lines can be selected."""
    return len({rank.node for rank in scene.ranks.values()} if is_grouped(scene, options) else scene.ranks)


def selected_rank(scene: TerminalScene, options: ViewOptions) -> int | None:
    """Return the rank that is selected: of a node, its worst."""
    if not scene.ranks:
        return None
    line = min(options.line, lines_of(scene, options) - 1)
    return _selected(rank_scene(scene.ranks.values()), line, grouped=is_grouped(scene, options)).rank.rank


def _selected(shown: RankScene, line: int, *, grouped: bool) -> RankLateness:
    return list(shown.nodes().values())[line][0] if grouped else shown.ranks[line]


def ranks_view(scene: TerminalScene, width: int, height: int, options: ViewOptions) -> list[Line]:
    """Return the view: a sentence, the list, and the phases of the selected rank beside those of the median rank."""
    if not scene.ranks:
        return box([("ranks", "title")], [[(" no rank has written yet", "dim")]], width, height)
    shown = rank_scene(scene.ranks.values())
    top = _top(scene, shown, width)
    chosen = min(options.line, lines_of(scene, options) - 1)
    grouped = is_grouped(scene, options)
    selected = _selected(shown, chosen, grouped=grouped)
    room = height - len(top)
    if width >= (WIDE if grouped else WIDER):
        listed = list_box(shown, width - ASIDE, room, chosen, grouped=grouped)
        return [*top, *beside([listed, rank_box(selected, shown, ASIDE, room)])]
    low = min(len(shown.phases) + 4, room // 2) if room >= 12 else 0
    listed = list_box(shown, width, room - low, chosen, grouped=grouped)
    return [*top, *listed, *(rank_box(selected, shown, width, low) if low else [])]


def _top(scene: TerminalScene, shown: RankScene, width: int) -> list[Line]:
    """Return why the ranks hang, otherwise the sentence about them."""
    hang = next((row["text"] for row in scene.firing() if row["evidence"].get("verdict")), "")
    lines = textwrap.wrap(plain(hang), width - 2, max_lines=MOST_LINES, placeholder=" …")
    if lines:
        return [[(" ", ""), (line, "bad")] for line in lines]
    return [[(" ", ""), (cut(sentence(shown), width - 2), "bad" if needs_attention(shown) else "")]]


def needs_attention(shown: RankScene) -> bool:
    """Return whether a rank is late, hangs or ended badly."""
    return bool(late_ranks(shown)) or any(not row.is_well for row in shown.ranks)


def late_ranks(shown: RankScene) -> list[RankLateness]:
    """Return the ranks that are late enough to be named, the latest first."""
    least = max(LATE_SECONDS, LATE_SHARE * shown.usual)
    late = [row for row in shown.ranks if row.late is not None and row.late >= least]
    return sorted(late, key=lambda row: -(row.late or 0.0))


def sentence(shown: RankScene) -> str:
    """Return how many ranks there are and which of them needs attention."""
    nodes = len(shown.nodes())
    parts = [format_items(len(shown.ranks), "rank") + (f" on {format_items(nodes, 'node')}" if nodes > 1 else "")]
    blamed = [row.rank for row in shown.ranks if row.rank.blame]
    parts += [f"rank {rank.rank} on {plain(short_node(rank.node), 40)} {rank.blame}" for rank in blamed[:2]]
    bad = [row for row in shown.ranks if not row.is_well]
    if bad and not blamed:
        state = plain(bad[0].rank.state, 20)
        more = f" and {len(bad) - 1} more are" if len(bad) > 1 else " is"
        parts.append(f"all are {state}" if len(bad) == len(shown.ranks) else f"rank {bad[0].rank.rank}{more} {state}")
    late = late_ranks(shown)
    if late:
        where = f" on {plain(short_node(late[0].rank.node), 40)}" if nodes > 1 else ""
        text = f"rank {late[0].rank.rank}{where} is late by {format_value(late[0].late, 'seconds')} of"
        text += f" {format_value(shown.usual, 'seconds')}"
        parts.append(text + (f", most of it in {plain(late[0].slowest, 30)}" if late[0].slowest else ""))
    elif len(shown.ranks) > 1 and shown.usual and not bad:
        parts.append("no rank is late")
    return "; ".join(parts)


def list_box(shown: RankScene, width: int, height: int, chosen: int, *, grouped: bool) -> list[Line]:
    """Return the lines of ranks or nodes, scrolled so that the selected one is visible."""
    inner = width - 2
    head, rows = _nodes(shown, inner) if grouped else _ranks(shown, inner)
    tall = max(0, height - 3)
    first = max(0, min(chosen - tall // 2, len(rows) - tall))
    body: list[Line] = [[(cut(head, inner), "dim")]]
    for place in range(first, min(len(rows), first + tall)):
        row = rows[place]
        body.append(
            [(text, f"{style} selected".strip()) for text, style in row[:2]] + row[2:] if place == chosen else row
        )
    above = f"{first + 1} to {min(len(rows), first + tall)} of {format_count(len(rows))}"
    end: Line = [(f"{above}, worst first", "dim")] if len(rows) > tall else list(LEGEND) if width >= 90 else []
    return box([("nodes" if grouped else "ranks", "title")], body, width, height, end)


def _ranks(shown: RankScene, width: int) -> tuple[str, list[Line]]:
    time = "own time" if shown.is_own else "step time"
    head = f" {'rank':>5} {'state':<9} {'step':>9} {'late':>9} {'mostly in':<13} {time:>9} "
    strip = max(0, min(64, width - len(head) - 12))
    head += f"{'recent steps':<{strip}} node" if strip >= 12 else "node"
    rows: list[Line] = []
    for row in shown.ranks:
        rank = row.rank
        line: Line = [(f" {rank.rank:>5} ", "bold"), (f"{cut(plain(rank.state), 9):<9} ", "" if row.is_well else "bad")]
        step = ABSENT if rank.step is None else str(rank.step)
        line += [(f"{right(step, 9)} ", ""), *_late(row, shown)]
        line.append((f"{right(format_value(row.own, 'seconds'), 9)} ", ""))
        if strip >= 12:
            recent = row.recent[-strip:]
            line += [("■", heat_of(late, shown.usual)) for late in recent] + [(" " * (strip - len(recent)), "")]
            line.append((" ", ""))
        rows.append([*line, (plain(short_node(rank.node), 40), "dim")])
    return head, rows


def _late(row: RankLateness, shown: RankScene) -> Line:
    """Return by how much a rank is late, and in which phase."""
    late = row.late
    if late is None or not shown.usual:
        return [(f"{ABSENT:>9} {'':<13} ", "dim")]
    style = heat_of(late, shown.usual)
    if abs(late) < 0.005 * shown.usual:
        return [(f"{'0':>9} {'':<13} ", style)]
    text = ("+" if late > 0 else "") + format_value(late, "seconds")
    return [(f"{right(text, 9)} {left(plain(row.slowest) if late > 0 else '', 13)} ", style)]


def _nodes(shown: RankScene, width: int) -> tuple[str, list[Line]]:
    """Return a line for each node: its worst rank, and a cell for each of its ranks."""
    nodes = shown.nodes()
    wide = max(6, min(24, max(len(short_node(node)) for node in nodes)))
    head = f" {'node':<{wide}} {'ranks':>5} {'worst':>6} {'late':>9} {'mostly in':<13} {'states':<12} each rank"
    rows: list[Line] = []
    for node, own in nodes.items():
        worst = own[0]
        bad = [row for row in own if not row.is_well]
        states = f"{len(bad)} {plain(bad[0].rank.state, 9)}" if bad else plain(worst.rank.state, 12)
        line: Line = [(f" {left(plain(short_node(node)) or '-', wide)} ", "bold"), (f"{len(own):>5} ", "")]
        line += [
            (f"{worst.rank.rank:>6} ", ""),
            *_late(worst, shown),
            (left(states, 12), "bad" if bad else ""),
            (" ", ""),
        ]
        every = sorted(own, key=lambda row: row.rank.rank)
        cells = max(1, width - len(head) + 9)
        line += [("■", "bad" if not row.is_well else heat_of(row.late, shown.usual)) for row in every[:cells]]
        rows.append(line)
    return head, rows


def rank_box(row: RankLateness, shown: RankScene, width: int, height: int) -> list[Line]:
    """Return the phases of one rank beside those of the median rank."""
    inner = width - 2
    rank = row.rank
    body: list[Line] = [[(f" {'phase':<13}{'this rank':>10}{'median':>9}{'beyond':>10}", "dim")]]
    longest = max([*row.phases.values(), *shown.phases.values()], default=0.0)
    for name, usual in shown.phases.items():
        seconds = row.phases.get(name, 0.0)
        beyond = seconds - usual
        much = beyond > LATE_SHARE * shown.usual and name not in {"backward", "communication"}
        change = (
            "0" if abs(beyond) < 0.005 * shown.usual else ("+" if beyond > 0 else "") + format_value(beyond, "seconds")
        )
        line: Line = [(f" {left(plain(name), 13)}", "")]
        line += [(right(format_value(seconds, "seconds"), 10), ""), (right(format_value(usual, "seconds"), 9), "")]
        line.append((right(change, 10), "bad" if much else "dim"))
        room = inner - 46
        if room >= 8 and longest:
            line += [(" ", ""), ("█" * max(1, round(seconds / longest * room)), phase_style(name))]
        body.append(line)
    if not shown.phases:
        body = [[(" the phases of its steps were not recorded", "dim")]]
    memory = rank.values.get("tree_memory_bytes", rank.values.get("memory_bytes"))
    cpu = rank.values.get("tree_cpu_ratio", rank.values.get("cpu_ratio"))
    facts = [f"cpu {format_value(cpu, 'ratio')}"] if cpu is not None else []
    facts += [f"memory {format_value(memory, 'bytes')}"] if memory is not None else []
    body += [[], [(f" {', '.join(facts)}", "dim")]] if facts else []
    title: Line = [(f"rank {rank.rank}", "title"), (f" {plain(short_node(rank.node), 24)}", "dim")]
    return filled(box(title, body, width, min(height, max(4, len(body) + 2))), width, height)
