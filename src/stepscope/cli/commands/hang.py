"""Say whether a training hangs, which ranks are the cause, which wait for them, and what to do.

WHAT is a run, live or ended, as for other commands; or files and folders of dumps that PyTorch's flight recorder wrote
for any job: _dump_0, nccl_trace_rank_0, comm_lib_trace_rank_0. Dumps are pickles: only plain data in them is read, and
nothing in them is executed.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.command import add_shared, show
from stepscope.cli.named_run import open_run
from stepscope.cli.text.progress import progress
from stepscope.cli.text.sheet import Sheet
from stepscope.core.errors import StepscopeError
from stepscope.core.terminal_text import plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


TITLES = {
    "none": "no hang",
    "never_arrived": "hang: a rank never arrived",
    "desynchronised": "hang: the ranks are in different collectives",
    "collective_stuck": "hang: a collective that all entered and none left",
    "dead_rank": "hang: a rank is dead",
    "outside_torch": "hang: a rank stands outside of torch",
    "unknown": "the cause is unknown",
}
SOURCES = {"steps": "steps", "stacks": "stacks", "flight_recorder": "recorder", "ras": "NCCL RAS"}
MOST_LINES = 12
"""Sentences of one source, and problems, that are printed; JSON has all."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    text = "a run, or files and folders of flight-recorder dumps"
    parser.add_argument("what", metavar="WHAT", nargs="+", help=text)
    add_shared(parser, "dir", "quiet", "json")


def run(options: argparse.Namespace) -> int:
    """Print the verdict."""
    from stepscope.analysis.hang.verdict import judge
    from stepscope.sources.hang import dump_evidence, hang_evidence

    paths = dumps_in(options.what)
    problems: list[str] = []
    with progress(f"reading {plain(options.what[0], 40)}", options=options):
        if paths:
            evidence, problems = dump_evidence(paths)
            if not evidence.ranks:
                cause = "; ".join(problems[:3]) or "there are none"
                raise StepscopeError(
                    "read flight-recorder dumps", cause, "name the files, or the folder that holds them"
                )
        else:
            evidence = hang_evidence(open_run(options.what[0], options.dir))
    facts = {**judge(evidence).as_dict(), "problems": [*problems, *evidence.problems]}
    for problem in _shown(facts["problems"]) if not options.json else ():
        print(f"stepscope: {plain(problem)}", file=sys.stderr)
    return show(options, facts, lambda width, paint: HangSheet(facts, width, paint).lines())


def _shown(problems: list[str]) -> list[str]:
    """Return the problems that are printed."""
    rest = len(problems) - MOST_LINES
    return [*problems[:MOST_LINES], f"{rest} more problems: see --json"] if rest > 1 else problems


def dumps_in(given: list[str]) -> list[Path]:
    """Return the paths if the arguments are dumps; [] if they name one run."""
    paths = [Path(one).expanduser() for one in given]
    first = paths[0]
    is_run = first.is_dir() and (first / "run.json").exists()
    if len(paths) > 1 or first.is_file() or (first.is_dir() and not is_run):
        return paths
    return []


class HangSheet(Sheet):
    """A verdict as lines of a given width."""

    def lines(self) -> Iterator[str]:
        """Yield the verdict, the evidence by source, and the remedy."""
        facts = self._facts
        is_fine = facts["kind"] == "none"
        yield self._paint(TITLES[facts["kind"]], "bold green" if is_fine else "bold red")
        yield from self._wrapped("", facts["text"])
        if not is_fine:
            yield self._fact("certainty", f"{round(facts['confidence'] * 100)} %")
        for source, sentences in facts["evidence"].items():
            label = SOURCES.get(source, source)
            for number, sentence in enumerate(sentences[:MOST_LINES]):
                yield from self._wrapped("" if number else label, sentence)
            if len(sentences) > MOST_LINES:
                yield self._fact("", f"and {len(sentences) - MOST_LINES} more: see --json")
        if facts["remedy"]:
            yield from self._wrapped("do", facts["remedy"])

    def _wrapped(self, label: str, text: str) -> Iterator[str]:
        for number, line in enumerate(textwrap.wrap(plain(text), self._width - self.label_width - 2) or [""]):
            yield self._fact("" if number else label, line)
