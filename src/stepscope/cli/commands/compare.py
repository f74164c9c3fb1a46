"""Compare runs with confidence intervals, and fail on regressions with gates.

A and B are each a run, several repeats of one program, or a saved baseline: a run's folder, id, prefix of an id or
'latest'; a folder of runs, the name of a project; a file or folder of another tool (tfevents, .wandb,
trainer_state.json, CSV, JSON lines, logs); the name of a baseline; a pattern in quotes; or several of these separated
by commas. Each further group is compared with A.

The intervals account for correlated steps and for the noise between equal runs: more repeats make them narrower. A
gate fails, with exit code 3, if B is certainly worse and the given rise cannot be ruled out. If the runs do not decide,
the gate passes as undecided (with --strict it fails) and reports how many runs would decide it.
"""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.cli.command import FINE, GATE, add_shared, show
from stepscope.cli.text.progress import progress
from stepscope.cli.text.table import Cell, Column, table
from stepscope.cli.text.terminal import Paint
from stepscope.core.errors import UsageError
from stepscope.core.numbers import format_value
from stepscope.core.terminal_text import cut, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from stepscope.analysis.compare.comparison import Compared, Comparison
    from stepscope.analysis.compare.gate import Aim
    from stepscope.analysis.compare.recording import Group

Parsed = TypeVar("Parsed")
STYLES = {
    **dict.fromkeys(("faster", "better", "passed", "met"), "green"),
    **dict.fromkeys(("slower", "worse", "failed", "missed", "not judged"), "red"),
    **dict.fromkeys(("not comparable", "undecided"), "yellow"),
}
LABEL = 10
TARGETS = "targets"
"""The gate that stands for the targets of the configuration."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("a", metavar="A", help="the reference")
    parser.add_argument("b", metavar="B", nargs="+", help="the measured runs")
    add_shared(parser, "dir")
    gate = "metric, and how much worse it may be: 'step_seconds +3%%', 'loss@1000 +1%%', 'accuracy@60s -2%%', 'targets'"
    parser.add_argument("--gate", metavar="GATE", action="append", default=[], help=gate)
    metric = (
        "compare this too; loss@1000 is its value at step 1000, loss@60s after 60 s, loss@end at the end of each run, "
        "loss@50%% half way; may be given several times"
    )
    parser.add_argument("--metric", metavar="NAME", action="append", default=[], help=metric)
    confidence = "share of intervals that hold the true difference (default: 0.95)"
    parser.add_argument("--confidence", metavar="P", type=_share, default=0.95, help=confidence)
    parser.add_argument("--strict", action="store_true", help="a gate that is undecided is not passed")
    parser.add_argument("--junit", metavar="FILE", help="write the gates as JUnit XML there")
    parser.add_argument("--markdown", metavar="FILE", help="write the comparison as Markdown there")
    add_shared(parser, "quiet", "json")


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.5 <= value <= 0.9999:
        raise argparse.ArgumentTypeError("give a share from 0.5 to 0.9999, such as 0.95")
    return value


def run(options: argparse.Namespace) -> int:
    """Compare and print; the exit code says whether the gates passed."""
    from stepscope.analysis.compare.gate import Gate
    from stepscope.analysis.compare.quantity import Spec

    gates = _parsed("take the gate", (text for text in options.gate if text != TARGETS), Gate.parse)
    asked = _parsed("compare", options.metric, Spec.parse)
    from stepscope.analysis.compare.comparison import compare
    from stepscope.cli.named_run import say
    from stepscope.cli.targets import aims, as_gate, targets
    from stepscope.sources.groups import group_of

    wanted = targets()
    names = {spec.name for spec in (*asked, *(gate.spec for gate in gates))}
    names |= {name.partition("@")[0] for name in wanted}
    made = {"asked": asked, "gates": gates, "confidence": options.confidence}
    with progress("reading", unit="runs", options=options) as advance:
        groups = [group_of(text, options.dir, names, advance, say) for text in (options.a, *options.b)]
    found = []
    with progress("comparing", len(options.b), options=options) as advance:
        for other in groups[1:]:
            advance(0, plain(other.label, 40))
            found.append(compare(groups[0], other, **made))
            advance()
    reached = {group.label: aims(group, wanted, options.confidence) for group in groups} if wanted else {}
    if TARGETS in options.gate:
        found = [replace(one, gates=(*one.gates, *map(as_gate, reached.get(one.b, ())))) for one in found]
    _write(options, found)
    passed = not any(item.stops(strict=options.strict) for one in found for item in one.gates)
    facts = _facts(groups, found, reached) | {"confidence": options.confidence, "passed": passed}
    show(options, facts, lambda width, paint: lines(groups, found, reached, width, paint))
    return FINE if passed else GATE


def _facts(groups: Sequence[Group], found: Sequence[Comparison], reached: dict[str, list[Aim]]) -> dict[str, Any]:
    return {
        "groups": [{"label": group.label, "runs": [run.label for run in group.runs]} for group in groups],
        "comparisons": [one.facts() for one in found],
        "targets": {label: [aim.facts() for aim in some] for label, some in reached.items()},
    }


def _parsed(verb: str, texts: Iterable[str], parse: Callable[[str], Parsed]) -> list[Parsed]:
    found = []
    for text in texts:
        try:
            found.append(parse(text))
        except ValueError as error:
            raise UsageError(f"{verb} {text!r}", error, "see `stepscope compare --help`") from error
    return found


def _write(options: argparse.Namespace, found: Sequence[Comparison]) -> None:
    from stepscope.exporters.files.output import open_output
    from stepscope.reports.comparison import junit, markdown

    for path, write in ((options.junit, junit), (options.markdown, markdown)):
        if path:
            with open_output(path, force=True) as stream:
                stream.write(write(found, strict=options.strict).encode())


def lines(
    groups: Sequence[Group], found: Sequence[Comparison], reached: dict[str, list[Aim]], width: int, paint: Paint
) -> Iterator[str]:
    """Yield the comparisons as lines for people."""
    for place, group in enumerate(groups):
        own = group.runs[0].label
        runs = f"{len(group.runs)} runs" if len(group.runs) > 1 else "1 run" if own == group.label else f"1 run, {own}"
        yield cut(f"{paint('A' if place == 0 else 'B', 'bold')}  {plain(group.label)}  ({plain(runs)})", width)
    for comparison in found:
        yield ""
        if len(found) > 1:
            yield paint(cut(f"{plain(comparison.b)} beside {plain(comparison.a)}", width), "bold")
        yield from _table(comparison, width, paint)
        yield from _gate_lines(comparison, width, paint)
        yield from _finding_lines(comparison, width, paint)
    for label, some in reached.items():
        yield ""
        yield paint(cut(f"Targets of {plain(label)}", width), "bold")
        yield from (_aim_line(aim, width, paint) for aim in some)


def _table(comparison: Comparison, width: int, paint: Paint) -> Iterator[str]:
    from stepscope.core.numbers import format_change
    from stepscope.reports.comparison import interval, value

    shown = [item for item in comparison.quantities if not _repeats(item, comparison)]
    if not shown:
        yield "  no quantity that both have"
        return
    confidence = f"{shown[0].found.confidence * 100:g} % interval"
    shape = [Column("quantity", narrowest=14), Column("A", right=True), Column("B", right=True)]
    shape += [Column("change", right=True), Column(confidence, right=True), Column("verdict")]
    rows = []
    for item in shown:
        values = [value(number, item.unit) for number in (item.found.a, item.found.b)]
        told: list[Any] = [plain(item.quantity), *values, format_change(item.found.ratio), interval(item.found)]
        rows.append([*told, Cell(item.found.verdict, STYLES.get(item.found.verdict, ""))])
    yield from table(shape, rows, width, paint, 2)
    for item in shown:
        if item.found.ratio is None:
            yield paint(cut(f"  {plain(item.quantity)}: {plain(item.found.why)}", width), "dim")
    first = next((item for item in shown if item.found.ratio is not None), None)
    if first is not None:
        yield from _wrapped(f"{first.quantity}: {first.definition}; {first.found.why}", width, paint, "dim")


def _repeats(item: Compared, comparison: Comparison) -> bool:
    """Return whether a quantity repeats another: the plain mean, where the typical step is the mean."""
    typical = comparison.quantity("step_seconds")
    return item.quantity == "step_seconds/mean" and typical is not None and typical.found == item.found


def _wrapped(text: str, width: int, paint: Paint, style: str = "") -> Iterator[str]:
    for line in textwrap.wrap(plain(text), width - 2) or [""]:
        yield paint(f"  {line}", style)


def _gate_lines(comparison: Comparison, width: int, paint: Paint) -> Iterator[str]:
    if comparison.gates:
        yield ""
        yield paint("Gates", "bold")
    for item in comparison.gates:
        yield f"  {paint(item.result.ljust(LABEL), STYLES.get(item.result, ''))}  {paint(plain(item.gate), 'bold')}"
        yield from (f"    {line.strip()}" for line in _wrapped(item.why, width - 4, Paint()))


def _finding_lines(comparison: Comparison, width: int, paint: Paint) -> Iterator[str]:
    if comparison.findings:
        yield ""
        yield paint("Comparable?", "bold")
    for item in comparison.findings:
        text = f"{item.text}: {item.remedy}" if item.remedy else item.text
        yield from _wrapped(text, width, paint, "yellow" if item.severity == "warning" else "dim")


def _aim_line(aim: Aim, width: int, paint: Paint) -> str:
    from stepscope.core.numbers import format_change
    from stepscope.core.vocabulary import unit_of

    unit = unit_of(aim.quantity.partition("@")[0])
    told = f"{format_value(aim.value, unit)} of {format_value(aim.target, unit)}" if aim.value is not None else ""
    over = f", {format_change(aim.over)}" if aim.over is not None else ""
    result = paint(aim.result.ljust(LABEL), STYLES.get(aim.result, ""))
    return f"  {result}  {cut(f'{plain(aim.quantity)}  {told}{over}', width - LABEL - 4)}"
