"""The summary that a run prints when it ends: what it did, what was wrong, and where to look.

Built from what is available (the clock, the end of the run's tail, its events): it waits for nothing, and cannot keep
the program from ending.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, TextIO

from stepscope.core.command_line import typed
from stepscope.core.endings import is_bad
from stepscope.core.errors import in_words
from stepscope.core.names import REPLACEMENT, UNSAFE
from stepscope.core.numbers import format_count, format_value
from stepscope.core.vocabulary import by_canonical
from stepscope.recorder.complaints import tell
from stepscope.store.layout import RunFolder
from stepscope.store.meta import read_meta
from stepscope.views.rates import StepTotals, rates

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from stepscope.views.event_list import EventCount

RECENT = 50
"""Steps over which the phases are averaged."""
MOST_TAIL = 2 << 20
"""Maximum bytes of a tail that are read: a longer one would take too long."""
SHOWN = ("loss", "accuracy")
PHASE = "phase/"
LABEL = 9
COMMANDS = ("look", "", "page")
"""Labels of commands to type."""
WIDEST = 100


def load() -> None:
    """Import what `show` needs; at the exit of the process, an import would change the exit code of a Ctrl-C."""
    names = ["store.states", "views.event_list", *(["store.decode"] if "numpy" in sys.modules else [])]
    for name in names:
        import_module(f"stepscope.{name}")


def show(
    path: Path,
    name: str,
    steps: int,
    end: str = "",
    *,
    rank: int = 0,
    launched: bool = False,
    stream: TextIO | None = None,
) -> None:
    """Print the summary of a run that has ended, on its first rank and on a terminal. Never raises.

    `end` says how it ended; it is empty if that is unknown before the process is gone. `launched` runs, those of
    `stepscope run`, print one line that says where they are, even without a terminal.
    """
    stream = sys.stderr if stream is None else stream
    try:
        if rank:
            return
        if not stream.isatty() or os.environ.get("TERM", "dumb") == "dumb":
            if launched:
                tell(f"this run is in {_shell(path)}; look with: {typed()} diagnose {_shell(path)}", stream)
            return
        width = min(WIDEST, shutil.get_terminal_size((80, 24)).columns)
        colour = not os.environ.get("NO_COLOR")
        bad = is_bad(end.partition(":")[0].partition(" ")[0]) or "critical" in _events(path).firing.values()
        stream.write("\n".join(drawn(list(lines(path, name, steps, end)), width, colour=colour, bad=bad)) + "\n")
        stream.flush()
    except Exception as problem:  # noqa: BLE001 - a card is a courtesy: whatever is wrong with it, the program goes on
        tell(f"cannot show the card of the run: {in_words(problem)}; `stepscope show` has all of it")


def drawn(rows: list[tuple[str, str]], width: int, *, colour: bool, bad: bool = False) -> Iterator[str]:
    """Yield rows of label and text in a frame; the first is the title, red if `bad`. Long commands are not cut."""
    title = f" {rows[0][0]} {rows[0][1]} "[: width - 6]
    dim, bold, off = ("\x1b[2m", "\x1b[1;31m" if bad else "\x1b[1m", "\x1b[0m") if colour else ("", "", "")
    yield f"{dim}╭─{off}{bold}{title}{off}{dim}{'─' * (width - 4 - len(title))}─╮{off}"
    for label, text in rows[1:]:
        room = width - LABEL - 5
        if len(text) > room and label in COMMANDS:  # meant to be copied: it may exceed the frame
            yield f"{dim}│{off} {dim}{label:<{LABEL}}{off} {text}"
            continue
        shown = text if len(text) <= room else f"{text[: room - 1]}…"
        yield f"{dim}│{off} {dim}{label:<{LABEL}}{off} {shown:<{room}} {dim}│{off}"
    yield f"{dim}╰{'─' * (width - 2)}╯{off}"


def lines(path: Path, name: str, steps: int, end: str = "", now: float | None = None) -> Iterator[tuple[str, str]]:
    """Yield label and text of each row, the title first."""
    yield "stepscope", f"{_plain(name)} {_plain(end)}".strip()
    created = float(read_meta(RunFolder(path)).get("created", 0)) / 1e6
    seconds = (time.time() if now is None else now) - created
    ranks = _trained(path)
    number = ranks[0].steps if ranks else steps
    rate = rates(ranks).steps_per_second
    speed = f" at {format_value(rate, 'steps/second')}" if rate is not None else ""
    yield "training", f"{format_count(number)} steps{speed}, {_span(seconds)} in all"
    values, phases = _recent(path)
    if values:
        yield "last", ", ".join(f"{shown} {format_value(value)}" for shown, value in values.items())
    if phases:
        yield "step", ", ".join(f"{_plain(phase)} {share * 100:.0f} %" for phase, share in list(phases.items())[:5])
    events = _events(path)
    if events.last is not None:
        firing = f"{len(events.firing)} firing; " if events.firing else ""
        yield "alerts", f"{firing}last: {_plain(events.last.get('text') or events.last.get('rule', ''))}"
    where, program = _shell(path), typed()
    yield "look", f"{program} diagnose {where}"
    yield "", f"{program} show {where}"
    yield "page", f"{program} serve {_shell(path.parents[1])}"


def _shell(path: Path) -> str:
    """Return the run's folder as one would type it here."""
    near, far = os.path.relpath(path), str(path)
    return shlex.quote(_plain(near if len(near) < len(far) else far))


def _trained(path: Path) -> list[StepTotals]:
    """Return the steps of each rank of the last attempt, as the watchers counted them; the first rank first."""
    from stepscope.store.states import newest_attempt, read_nodes

    nodes, _ = read_nodes(RunFolder(path))
    last = newest_attempt(nodes)
    ranks = [each for node in nodes if node.attempt == last for each in node.ranks.items()]
    ordered = [state for _, state in sorted(ranks, key=lambda each: each[0])]
    return [StepTotals(one.steps, one.step_seconds) for one in ordered if one.steps and one.step_seconds]


def _span(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return format_value(seconds, "seconds")
    minutes, hours = whole // 60, whole // 3600
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min {whole % 60} s"


def _events(path: Path) -> EventCount:
    from stepscope.views.event_list import EventCount

    events = EventCount(RunFolder(path))
    events.look()
    return events


def _recent(path: Path) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return last values and the shares of the phases, from the end of the newest tail; empty without NumPy."""
    if "numpy" not in sys.modules:  # importing it takes longer than a summary is worth
        return {}, {}
    from stepscope.store.decode import decode_tail

    tails = [span.path for span in RunFolder(path).all_tails()]
    newest = max(tails, key=lambda tail: tail.stat().st_mtime, default=None)
    if newest is None or newest.stat().st_size > MOST_TAIL:
        return {}, {}
    points = decode_tail(newest.read_bytes(), {}).points
    recorded = by_canonical(points.names)
    kept = {name: name for name in points.names if name.startswith(PHASE)}
    kept |= {name: recorded[name] for name in SHOWN if name in recorded}
    codes = {name: points.names.index(logged) for name, logged in kept.items()}
    own = {name: points.value[(points.name == code) & (points.rank == 0)][-RECENT:] for name, code in codes.items()}
    values = {name: float(own[name][-1]) for name in SHOWN if len(own.get(name, ()))}
    sums = {name.removeprefix(PHASE): float(own[name].sum()) for name in own if name.startswith(PHASE)}
    total = sum(sums.values())
    ordered = sorted(sums.items(), key=lambda entry: -entry[1])
    return values, {name: seconds / total for name, seconds in ordered if total > 0 and seconds / total >= 0.01}


def _plain(text: object) -> str:
    return UNSAFE.sub(REPLACEMENT, " ".join(str(text)[:200].split()))
