"""Show one run: state, where its time goes, metrics, machine, and the overhead of recording.

Works while the run is being recorded. RUN is the folder of a run, its id or a unique prefix of it, project/id, its
display name, or 'latest'; or a file of another tool.
With --metric only these metrics are shown, with all their statistics.
"""

from __future__ import annotations

import json
import shlex
import textwrap
import time
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import add_shared, show
from stepscope.cli.commands.runs import STYLES, style_of
from stepscope.cli.named_run import resolve
from stepscope.cli.text.machine_lines import end_lines, machine_lines
from stepscope.cli.text.progress import progress
from stepscope.cli.text.sheet import Sheet
from stepscope.cli.text.table import Cell, Column, table
from stepscope.cli.text.terminal import bar, sparkline
from stepscope.core.numbers import format_age, format_count, format_duration, format_items, format_value
from stepscope.core.terminal_text import cut, plain
from stepscope.views.sinks import behind_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from stepscope.cli.text.terminal import Paint

METRICS = 20
"""Metrics that a table has; JSON has all."""
RANKS = 16
NODES = 12
"""Lines about nodes that came or went."""
FATES = {"died": "red", "failed": "red", "preempted": "yellow", "left": "yellow"}
TEXTS = 12
PHASES = 12
CONFIG_LINES = 3
MOST_NOTES = 1000
"""Characters of the notes; JSON has all."""
SINK_STYLES = {"good": "green", "go": "blue", "warn": "yellow", "bad": "red"}
METRIC_TITLES = ("last", "min", "max", "mean", "nan/inf")
FIGURES = ("mean", "p50", "p95", "max")


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_shared(parser, "run", "dir")
    text = "show this metric only, with all its statistics; may be repeated"
    parser.add_argument("--metric", metavar="NAME", action="append", default=[], help=text)
    add_shared(parser, "quiet", "json")


def run(options: argparse.Namespace) -> int:
    """Print the run, or some of its metrics."""
    source = resolve(options.run, options.dir)
    from stepscope.views import overview  # loads numpy and DuckDB: a run that is not found needs neither

    metrics: list[dict[str, Any]] = []
    with progress(f"reading {plain(options.run, 40)}", options=options), source.opened() as past:
        if options.metric:
            metrics = [overview.details(past, name) for name in options.metric]
            facts: dict[str, Any] = {"run": {"id": past.id}, "metrics": metrics}
        else:
            facts = overview.overview(past, None if options.json else METRICS)
    facts["run"]["path"] = source.path  # not that of the temporary run that a file becomes
    if options.metric:
        return show(options, facts, lambda *page: (line for one in metrics for line in metric_block(one, *page)))
    quiet = overview.silence(facts["heard"]) if facts["state"] == "running" else None
    return show(options, facts, lambda width, paint: RunSheet(facts, width, paint, time.time(), quiet).lines())


class RunSheet(Sheet):
    """The facts of a run as lines of a given width."""

    def __init__(self, facts: dict[str, Any], width: int, paint: Paint, now: float, quiet: float | None = None) -> None:
        """Take the facts of `overview`; `now` in seconds since 1970, `quiet` in seconds."""
        super().__init__(facts, width, paint)
        self._now, self._quiet = now, quiet

    def lines(self) -> Iterator[str]:
        """Yield the page."""
        told = (self._head, self._time, self._metrics, self._texts, self._machine, self._sinks)
        parts = (*told, self._nodes, self._ranks, self._end, self._foot)
        yield from (line for part in parts for line in part())

    def _head(self) -> Iterator[str]:
        facts, about = self._facts, self._facts["run"]
        named = plain(about["name"] or about["id"])
        style = f"bold {style_of(facts['state'], facts['cause'])}".strip()
        yield f"{self._paint(cut(named, self._width - 14), 'bold')}  {self._paint(facts['state'], style)}"
        if facts["cause"]:
            label = "wrong" if facts["state"] == "finished" else "cause"
            yield from self._wrapped(label, plain(_cause(facts)), 3)
        if facts["hang"] is not None:
            yield from self._wrapped("hang", plain(f"{facts['hang']['text']} See `stepscope hang`."), 4)
        if self._quiet is not None:
            yield self._fact("silent", f"no sign of its watcher for {format_duration(self._quiet)}", "yellow")
        yield self._fact("run", f"{plain(about['id'])} in project {plain(about['project'] or '-')}")
        yield self._fact("time", self._when())
        if facts["clocks"]["text"]:
            yield from self._wrapped("clocks", facts["clocks"]["text"], 2)
        for label, text in _surroundings(about):
            if text:
                yield self._fact(label, plain(text))
        yield from self._labels(about["labels"])
        if about["config"]:
            config = "  ".join(plain(item) for item in flatten(about["config"]))
            yield from self._wrapped("config", config, CONFIG_LINES)
        yield self._fact("folder", plain(about["path"]))
        yield self._fact("size", f"{format_value(facts['bytes'], 'bytes')}, {format_count(facts['points'])} points")

    def _labels(self, labels: dict[str, Any]) -> Iterator[str]:
        if labels["tags"]:
            yield from self._wrapped("tags", ", ".join(map(plain, labels["tags"])), CONFIG_LINES)
        if labels["group"]:
            yield self._fact("group", plain(labels["group"]))
        if labels["notes"]:
            yield from self._wrapped("notes", plain(labels["notes"], MOST_NOTES), CONFIG_LINES)

    def _when(self) -> str:
        facts = self._facts
        created = facts["run"]["created"]
        began = "began at an unknown time"
        if created:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(created))
            began = f"{stamp}, {format_age(self._now - created)} ago".replace("now ago", "just now")
        verb = "running for" if facts["state"] == "running" else "took"
        step = "" if facts["step"] is None else f", last step {format_count(facts['step'])}"
        return f"{began}; {verb} {format_duration(facts['duration_seconds'])}{step}"

    def _wrapped(self, label: str, text: str, most: int) -> Iterator[str]:
        room = self._width - self.label_width - 2
        for number, line in enumerate(textwrap.wrap(text, room, max_lines=most, placeholder=" …") or [""]):
            yield self._fact("" if number else label, line)

    def _time(self) -> Iterator[str]:
        taken = self._facts["time"]
        if taken is None:
            return
        summary = f"{format_count(taken['steps'])} steps, {_seconds(taken['seconds'])}"
        yield from self._title("Where the time goes", summary)
        titles = ("per step", "p50", "p95", "max")
        shape = [Column("phase", narrowest=8), Column("share", right=True), Column("", optional=True)]
        shape += [Column(title, right=True, optional=title in titles[1:]) for title in titles]
        width = max(8, min(40, self._width - 68))
        whole: list[Cell | str] = [Cell("the step", "bold"), "", "", *(_seconds(taken["step"][key]) for key in FIGURES)]
        rows = [_phase_row(phase, width) for phase in taken["phases"][:PHASES]]
        yield from table(shape, [*rows, whole], self._width, self._paint, 2)
        if len(taken["phases"]) > PHASES:
            yield self._note(f"and {len(taken['phases']) - PHASES} more phases; --json has them")
        if taken["window"]:
            yield self._note(f"of the steps {taken['window'][0]} to {taken['window'][1]}; there are more before")
        yield from self._throughput()

    def _throughput(self) -> Iterator[str]:
        units = {"samples_per_second": "samples/second", "steps_per_second": "steps/second"}
        found = []
        for rate in self._facts["throughput"]:
            parts = [format_value(rate[key], unit) for key, unit in units.items() if rate[key] is not None]
            ranks = f", {rate['ranks']} ranks together" if rate["ranks"] > 1 else ""
            if parts:
                found.append((rate["attempt"], f"{', '.join(parts)}{ranks}"))
        if len(found) == 1:
            yield from self._title("Throughput", found[0][1])
        elif found:
            yield from self._title("Throughput")
            yield from (f"  attempt {attempt}: {text}" for attempt, text in found[-3:])
        if found:
            yield self._note("steps and their samples, divided by the time of these steps")

    def _metrics(self) -> Iterator[str]:
        found, total = self._facts["metrics"], self._facts["metrics_total"]
        if not found:
            yield from self._title("Metrics", "none recorded" if self._facts["state"] != "running" else "none yet")
            return
        yield from self._title("Metrics", format_count(total))
        shape = [Column("metric", narrowest=12)]
        shape += [Column(title, right=True, optional=title == "mean") for title in METRIC_TITLES]
        rows = [_metric_row(metric, self._width >= 100) for metric in found]
        yield from table([*shape, Column("trend", optional=True)], rows, self._width, self._paint, 2)
        if total > len(found):
            more = format_count(total - len(found))
            yield self._note(f"and {more} more: --metric NAME shows one, --json all of them")

    def _texts(self) -> Iterator[str]:
        found = self._facts["texts"]
        if not found:
            return
        yield from self._title("Texts", "the newest of each name; the page has all")
        shape = [Column("name", narrowest=8), Column("step", right=True), Column("logged", right=True, optional=True)]
        rows = []
        for one in found[:TEXTS]:
            step = "" if one["step"] is None else format_count(one["step"])
            text = plain(" ".join(one["text"].split()), 400)
            rows.append([plain(one["name"], 40), step, format_count(one["count"]), text])
        yield from table([*shape, Column("text", narrowest=20)], rows, self._width, self._paint, 2)
        if len(found) > TEXTS:
            yield self._note(f"and {format_count(len(found) - TEXTS)} more names; --json has them")

    def _machine(self) -> Iterator[str]:
        found = list(machine_lines(self._facts["machine"], self._width, self._paint))
        if found:
            number = format_count(len(self._facts["machine"]["metrics"]))
            yield from self._title("Machine", f"means over the run; {number} metrics in all, --metric NAME shows one")
            yield from found

    def _sinks(self) -> Iterator[str]:
        found = self._facts["sinks"]
        if not found:
            return
        yield from self._title("Sinks", "other tools that get a copy of this run")
        titles = ("behind", "sent", "refused")
        shape = [Column("name", narrowest=8), Column("state"), *(Column(title, right=True) for title in titles)]
        shape += [Column("address", narrowest=12, optional=True)]
        yield from table(shape, [_sink_row(sink) for sink in found], self._width, self._paint, 2)
        for sink in found:
            if sink["why"]:
                since = f" for {format_age(self._now - sink['since'])}" if sink["since"] else ""
                text = f"{plain(sink['name'], 40)}: {sink['state']}{since}: {plain(sink['why'])}"
                for line in textwrap.wrap(text, self._width - 4, subsequent_indent="  ", max_lines=3):
                    yield self._paint(cut(f"  {line}", self._width), SINK_STYLES[sink["tone"]])
            if sink["link"]:
                yield self._note(f"{plain(sink['name'], 40)}: {plain(sink['link'])}")

    def _end(self) -> Iterator[str]:
        facts = self._facts["end"]
        found = list(end_lines(facts, self._width, self._paint))
        if found:
            title = "So far" if self._facts["state"] == "running" else "The end"
            yield from self._title(title, f"last {len(facts['steps'])} steps of rank {facts['rank']}")
            yield from found

    def _nodes(self) -> Iterator[str]:
        nodes = self._facts["nodes"]
        if nodes["count"] < 2:
            return
        lines, total = nodes["lines"], format_items(nodes["count"], "node")
        yield from self._title("Nodes", f"{total}, {nodes['told'] or 'none'} of which came late or went early")
        shape = [Column("attempt", right=True), Column("node", narrowest=8), Column("what", narrowest=11)]
        rows = [_fate_row(line) for line in lines[:NODES]]
        if rows:
            yield from table([*shape, Column("how", narrowest=12)], rows, self._width, self._paint, 2)
        if len(lines) > NODES:
            yield self._note(f"and {format_count(len(lines) - NODES)} more; --json has them")

    def _ranks(self) -> Iterator[str]:
        ranks = self._facts["attempts"]
        yield from self._title("Attempts and ranks", "" if ranks else "no watcher has written yet")
        titles = ("attempt", "rank", "state", "step", "rows", "lost", "refused")
        shape = [Column(title, right=title in titles[3:], narrowest=10 * (title == "state")) for title in titles]
        shape += [Column("duration", right=True, optional=True), Column("node", narrowest=8, optional=True)]
        healthy = {"finished", "running"}
        well = {id(rank): rank["state"] in healthy and not rank["stall"] for rank in ranks}
        shown = sorted(ranks, key=lambda rank: (well[id(rank)], -rank["attempt"], rank["rank"]))
        if ranks:
            yield from table(shape, [_rank_row(rank) for rank in shown[:RANKS]], self._width, self._paint, 2)
        if len(ranks) > RANKS:
            yield self._note(f"and {format_count(len(ranks) - RANKS)} more; --json has them")

    def _foot(self) -> Iterator[str]:
        facts, own = self._facts, self._facts["own_cost"]
        parts = [", ".join(f"{format_count(own[key])} {key}" for key in ("rows", "lost", "refused"))]
        if own["log_seconds"] is not None:
            parts.append(f"{_seconds(own['log_seconds'])} a call")
        if own["cost_ratio"] is not None:
            parts.append(f"{format_value(own['cost_ratio'], 'ratio')} of the time")
        yield from self._title("Overhead of recording", ", ".join(parts))
        if facts["events"]:
            kinds = sorted(facts["events"].items(), key=lambda item: (-item[1], item[0]))
            counts = ", ".join(f"{format_count(number)} {plain(kind, 40)}" for kind, number in kinds)
            yield from self._title("Events", counts)
        if facts["problems"]:
            yield from self._title("Problems while reading", str(len(facts["problems"])))
            for problem in facts["problems"][:8]:
                yield self._paint(cut(f"  {plain(problem)}", self._width), "yellow")
            if len(facts["problems"]) > 8:
                yield self._note(f"and {len(facts['problems']) - 8} more; --json has them")


def _cause(facts: dict[str, Any]) -> str:
    """Return why the run ended: among many ranks the first error, not the one that was reported first."""
    first = facts["end"]["first_error"] if facts["end"] and facts["state"] != "finished" else None
    return str(first["summary"] if first and first["ranks"] and first["others"] else facts["cause"])


def _surroundings(about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield label and text of the run's environment; an old or foreign run.json may lack any of them."""
    platform, python, git = (_mapping(about[key]) for key in ("platform", "python", "git"))
    machine = [about["host"], about["container"], platform.get("system"), platform.get("machine")]
    processors, memory = _mapping(about["cpu"]).get("usable"), _mapping(about["memory"]).get("total_bytes")
    machine += [
        f"{processors} CPUs" if processors else "",
        format_value(memory, "bytes") if isinstance(memory, (int, float)) else "",
    ]
    yield "host", ", ".join(str(part) for part in machine if part)
    yield "python", " ".join(str(python[key]) for key in ("version", "executable") if python.get(key))
    yield "git", " ".join(str(part) for part in (str(git.get("commit") or "")[:12], git.get("branch")) if part)
    command = about["command"]
    yield "command", shlex.join(str(word) for word in command) if isinstance(command, list) else ""


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _seconds(value: float | None) -> str:
    return format_value(value, "seconds")


def flatten(config: Any, above: str = "") -> Iterator[str]:
    """Yield a configuration as `path=value` texts."""
    if isinstance(config, dict) and config:
        for key, value in config.items():
            yield from flatten(value, f"{above}.{key}" if above else str(key))
    else:
        text = config if isinstance(config, str) else json.dumps(config)
        yield f"{above}={text}" if above else text


def _phase_row(phase: dict[str, Any], width: int) -> list[Cell | str]:
    share, figures = phase["share"], [_seconds(phase[key]) for key in FIGURES]
    return [plain(phase["phase"]), format_value(share, "ratio"), Cell(bar(share or 0.0, width), "blue"), *figures]


def _sink_row(sink: dict[str, Any]) -> list[Cell | str]:
    refused = Cell(format_count(sink["refused_rows"]), "red" if sink["refused_rows"] else "")
    state = Cell(sink["state"], SINK_STYLES[sink["tone"]])
    return [
        plain(sink["name"], 40),
        state,
        behind_text(sink),
        format_items(sink["sent_rows"], "row"),
        refused,
        plain(sink["address"]),
    ]


def _metric_row(metric: dict[str, Any], wide: bool) -> list[Cell | str]:  # noqa: FBT001 - private
    unit = metric["unit"]
    figures: list[Cell | str] = [format_value(metric[key], unit) for key in ("last", "min", "max", "mean")]
    bad = Cell(format_count(metric["nonfinite"]), "red") if metric["nonfinite"] else Cell("")
    line = sparkline(metric["trend"] if wide else _joined(metric["trend"], 3))
    return [plain(metric["name"]), *figures, bad, Cell(line, "cyan")]


def _joined(trend: list[float | None], size: int) -> list[float | None]:
    """Join `size` intervals each; values that are not finite stay visible."""
    groups = [trend[place : place + size] for place in range(0, len(trend), size)]
    known = [[value for value in group if value is not None] for group in groups]
    pairs = zip(known, groups, strict=True)
    return [sum(some) / len(some) if len(some) == len(group) else None for some, group in pairs]


def _fate_row(line: dict[str, Any]) -> list[Cell | str]:
    kind = Cell(line["kind"], FATES.get(line["kind"], ""))
    return [str(line["attempt"]), plain(line["who"]), kind, plain(line["text"])]


def _rank_row(rank: dict[str, Any]) -> list[Cell | str]:
    mark = " (inferred)" if rank["inferred"] else ""
    word = rank["stall"] or rank["state"]
    state = Cell(f"{plain(word)}{mark}", STYLES.get(word, ""))
    counts = [format_count(rank[key]) for key in ("step", "rows")]
    lost = [Cell(format_count(rank[key]), "red" if rank[key] else "") for key in ("lost", "refused")]
    ends = [format_duration(rank["seconds"]), plain(rank["node"])]
    return [str(rank["attempt"]), str(rank["rank"]), state, *counts, *lost, *ends]


def metric_block(facts: dict[str, Any], width: int, paint: Paint) -> Iterator[str]:
    """Yield all statistics of one metric."""
    unit = facts["unit"]
    steps = "" if facts["first_step"] is None else f", steps {facts['first_step']} to {facts['last_step']}"
    ranks = f", {len(facts['ranks'])} ranks" if len(facts["ranks"]) > 1 else ""
    yield f"{paint(cut(plain(facts['name']), width - 30), 'bold')}  {format_count(facts['count'])} points{steps}{ranks}"
    if facts["trend"]:
        yield f"  {paint(sparkline(facts['trend']), 'cyan')}"
    for keys in (("last", "min", "max", "mean"), ("std", "p50", "p95", "p99")):
        figures = (f"{paint(key.ljust(5), 'dim')}{format_value(facts[key], unit):<14}" for key in keys)
        yield f"  {''.join(figures).rstrip()}"
    if facts["nonfinite"]:
        yield paint(f"  {format_count(facts['nonfinite'])} of them not finite", "red")
    yield ""
