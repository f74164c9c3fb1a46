"""Check this installation: what was detected, what is missing and why, and what to do.

Checks interpreter, packages, folders, shared memory, GPUs, the machine's sensors, container, launcher, configuration
and sinks, and recovers data left behind by crashed processes. Exit code 0 if a run started here would be recorded,
else 1.
"""

from __future__ import annotations

import os
import textwrap
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.command import FAILED, FINE, add_shared, show
from stepscope.cli.commands import checks
from stepscope.cli.commands.checks import BAD, NOTE, OFF, OK, Check
from stepscope.cli.text.terminal import shows_unicode
from stepscope.core.config import discover, load, load_or_default
from stepscope.core.errors import UsageError
from stepscope.core.numbers import format_items
from stepscope.core.places import find_places
from stepscope.core.terminal_text import plain
from stepscope.samplers.machine import host_samplers
from stepscope.samplers.nvidia import describe_gpus
from stepscope.store.catalog import runs_root
from stepscope.store.known_roots import known_roots
from stepscope.store.salvage import salvage
from stepscope.version import __version__

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from stepscope.cli.text.terminal import Paint
    from stepscope.core.config import Config

MARKS = {OK: ("✓", "green"), NOTE: ("!", "yellow"), OFF: ("-", "dim"), BAD: ("✗", "red")}
PLAIN_MARKS = {OK: "+", BAD: "X"}
LABEL = 16
"""Columns of the topics."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_shared(parser, "dir", "json")


def run(options: argparse.Namespace) -> int:
    """Print the report."""
    found = list(examine(options.dir))
    works = all(finding.state != BAD for finding in found)
    facts = {"version": __version__, "would_record": works, "findings": [asdict(finding) for finding in found]}
    show(options, facts, lambda *page: report(found, *page))
    return FINE if works else FAILED


def examine(root: str | None) -> Iterator[Check]:
    """Yield everything that was found."""
    environ = os.environ
    files = discover(Path.cwd(), environ)
    config = load_or_default(files, environ=environ)
    yield from checks.python(environ)
    yield from checks.hot_path()
    yield from checks.platform()
    yield from checks.packages()
    yield from checks.configuration(config, files, _config_error(files))
    yield from checks.variables(environ)
    yield from checks.runs_root(runs_root(root))
    yield from checks.known_roots(known_roots(environ))
    yield from _machine(config)
    yield from checks.machine(describe_gpus(), _absent())
    yield from checks.surroundings(environ)
    yield from checks.launcher(environ)
    yield from checks.sinks(config, environ)


def _absent() -> dict[str, str]:
    """Sample the machine once, and return the missing values with the reasons."""
    found: dict[str, str] = {}
    for sampler in host_samplers(Path("/"), Path.cwd(), dict):
        try:
            sampler.sample(time.monotonic_ns())
            found |= sampler.absent()
        except (OSError, ValueError) as error:
            found[sampler.name] = f"{error}; the others go on without it"
    return found


def _config_error(files: Sequence[Path]) -> str | None:
    try:
        load(files, environ=os.environ)
    except UsageError as error:
        return str(error)
    return None


def _machine(config: Config) -> Iterator[Check]:
    """Check the runtime folders, and recover the data of crashed processes."""
    try:
        places = find_places()
    except OSError as error:
        text = f"there is no private folder for locks and rings: {error}"
        yield Check("runtime", BAD, text, "set STEPSCOPE_RUNTIME_DIR to a folder of your own")
        return
    notes: list[str] = []
    salvaged = salvage(places, note=notes.append)
    yield from checks.ring_place(places, config.get("recorder.ring_bytes"), wanted=config.get("recorder.memory_map"))
    yield from checks.recording(places, salvaged, notes)


def report(found: Sequence[Check], width: int, paint: Paint) -> Iterator[str]:
    """Yield the report: the verdict, then a line or more for each finding."""
    bad = sum(finding.state == BAD for finding in found)
    notes = sum(finding.state == NOTE for finding in found)
    verdict = "A run started here would not be recorded" if bad else "A run started here would be recorded"
    more = "".join(f", {format_items(*count)}" for count in ((bad, "problem"), (notes, "note")) if count[0])
    yield f"stepscope {__version__}  {paint(verdict, 'bold red' if bad else 'bold green')}{more}"
    yield ""
    before = ""
    for finding in found:
        yield from _lines(finding, width, paint, repeated=finding.topic == before)
        before = finding.topic


def _lines(finding: Check, width: int, paint: Paint, *, repeated: bool) -> Iterator[str]:
    mark, style = MARKS[finding.state]
    shown = mark if shows_unicode() else PLAIN_MARKS.get(finding.state, mark)
    topic = "" if repeated else finding.topic
    start = f"  {paint(shown, style)} {paint(topic.ljust(LABEL), 'dim')}"
    room = width - LABEL - 4
    for number, line in enumerate(textwrap.wrap(plain(finding.text), room) or [""]):
        yield f"{' ' * (LABEL + 4) if number else start}{paint(line, 'dim' if finding.state == OFF else '')}"
    for number, line in enumerate(textwrap.wrap(plain(finding.remedy), room - 2)):
        arrow = "  " if number else "→ " if shows_unicode() else "> "
        yield f"{' ' * (LABEL + 4)}{paint(arrow + line, 'cyan')}"
