"""Log lines of home-made training loops: a step and named numbers, as `step:10/1845 loss:3.2 train_time:79ms`.

Also `step 10 | loss: 3.2 | lr 1e-4 | dt: 80.1ms`, `[iter 10] loss=3.2, lr=1e-4` and a Trainer's printed
`{'loss': 2.1, 'epoch': 0.1}`. Times become seconds and sizes bytes if the line has their unit. A line below that holds
only a name and a number, as `14:10:55 | Mean reward: 0.2`, is a value of that step.
"""

from __future__ import annotations

import math
import re
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from stepscope.core.ring import NO_STEP
from stepscope.importers.logs.log_lines import Figures, LoggedStep, messages, without_prefix
from stepscope.importers.run_builder import ImportFormat, RunBuilder
from stepscope.importers.source import at_end
from stepscope.importers.words import parsed, plain, scaled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.importers.source import FileHead

NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d{1,30})?(?:\.\d{0,30})?(?:[eE][-+]?\d{1,3})?"
STEP = re.compile(
    r"(?:^s:(?=\d)|(?:^|[\s\[(|,{>])['\"]?(?:global[_ ]?)?(?:step|iter|iteration)['\"]?[\s:=#]{1,12})"
    r"(\d{1,15})(?![.\w])(?:\s{0,8}/\s{0,8}(\d{1,15}))?",
    re.IGNORECASE,
)
"""A step, perhaps with the total number of steps."""
PAIR = re.compile(
    r"(?<![\w.])['\"]?([A-Za-z][\w./-]{0,60}(?: [A-Za-z][\w./-]{0,40}){0,3})['\"]?\s{0,8}[:=]\s{0,12}['\"]?"
    rf"({NUMBER}|nan|[-+]?inf)\s?(ms|secs?|s|us|MiB|GiB|MB|GB|%)?(?![\w.])",
    re.IGNORECASE,
)
BARE = re.compile(
    rf"\s{{0,20}}([A-Za-z][\w./ -]{{0,40}}?)\s{{1,12}}({NUMBER}|nan|[-+]?inf)\s?(ms|s|MiB|GiB|MB|GB|%)?\s{{0,20}}",
    re.IGNORECASE,
)
"""A name and a number with nothing between: a whole field between bars, or one of a list of such fields."""
LIST = re.compile(r"[,;]\s{1,8}|(?<=[\d%])\s{1,8}(?=[A-Za-z])(?!(?:ms|s|[MG]i?B)\b)")
COLOUR = re.compile(r"\x1b\[[\d;]{0,20}m")
PRINTED = re.compile(r"\{'[\w/]{1,60}': .{0,2000}'epoch': ")
"""A dictionary printed by Transformers' Trainer, perhaps after a progress bar."""
VERSION = re.compile(
    r"^Running (Python|PyTorch|Triton)(?: version)? (\S{1,60})(?:.{0,80} compiled for CUDA (\S{1,20}))?", re.IGNORECASE
)
DEVICE = re.compile(
    r"\|\s{1,5}(\d{1,3})\s{1,6}((?:NVIDIA|Tesla|GeForce|Quadro|AMD) \S[\w -]{0,40}?)(?:\s+(?:On|Off))?\s*\|"
)
UNITS = {
    "us": (1e-6, "seconds"),
    "ms": (1e-3, "seconds"),
    **dict.fromkeys(("s", "sec", "secs"), (1.0, "seconds")),
    **dict.fromkeys(("mib", "mb"), (2.0**20, "bytes")),
    **dict.fromkeys(("gib", "gb"), (2.0**30, "bytes")),
    "%": (0.01, "ratio"),
}
"""Units that a line may have: the factor to the base unit, and the suffix of a name in it."""
MEMORY = {"peak_memory_allocated": "gpu/0/memory_peak_bytes", "reserved": "gpu/0/memory_reserved_bytes"}
LEAST_LINES = 2
"""Minimum lines with a step and a number that make a log; a single one could be chance."""
LINES_LOOKED_AT = 20_000
MOST_CHARACTERS = 10_000
"""Maximum characters of a line."""
CLOCK = "train_seconds"
"""Training time so far."""


def recognises(head: FileHead) -> bool:
    """Return whether a text has lines with a step and named numbers."""
    short = (line for line in head.text.splitlines()[:LINES_LOOKED_AT] if len(line) < 2000)
    rows = (line for line in short if _row(without_prefix(line)[0]) is not None)
    return len(list(islice(rows, LEAST_LINES))) == LEAST_LINES


def fill(path: str, run: RunBuilder) -> None:
    """Read the values of the lines; a step below the previous one starts a new attempt.

    The time of a point is the training time so far, if its line has it.
    """
    below, durations = Figures(run), StepDurations(run)
    latest: dict[int, LoggedStep] = {}
    printed = 0
    for text, named_rank in messages(path, run, MOST_CHARACTERS):
        found, rank = _row(text), named_rank or 0
        before = latest.get(rank)
        if found is None:
            _add_below(run, below, text, before or LoggedStep(NO_STEP, rank, 0))
            continue
        step, total, pairs = found
        if step is None:
            step, printed = printed, printed + 1
        if total is not None:
            run.facts["steps"] = total
        attempt = before.attempt + (step < before.step) if before else 0
        latest[rank] = LoggedStep(step, rank, attempt)
        time = dict(pairs).get(CLOCK, math.nan)
        durations.add(step, time, attempt)
        for name, value in pairs:
            run.add(name, value, step, time, rank, attempt)
    if printed:
        run.note("its lines have no step: they were counted")
    durations.finish()
    below.finish()


def _row(line: str) -> tuple[int | None, int | None, list[tuple[str, float]]] | None:
    """Return step, total number of steps and named numbers of a line; None if it is not a log row."""
    line = COLOUR.sub("", line) if "\x1b" in line else line
    place = STEP.search(line)
    if place is None:
        printed = PRINTED.search(line)
        pairs = list(_pairs(line[printed.start() :])) if printed else []
        return (None, None, pairs) if len(pairs) > 1 else None
    pairs = [*_pairs(line[: place.start()]), *_pairs(line[place.end() :])]
    return (int(place[1]), int(place[2]) if place[2] else None, pairs) if pairs else None


def _pairs(text: str) -> Iterator[tuple[str, float]]:
    """Yield the named numbers of a text in base units, each under a name with its unit."""
    for given, figure, unit in (*PAIR.findall(text), *_bare(text)):
        value = parsed(figure)
        if value is None:
            continue
        factor, word = UNITS.get(unit.lower(), (1.0, ""))
        name = plain(given)
        if word == "seconds":
            name = name.removesuffix("_time").removesuffix("_ms") + "_seconds" if name != "dt" else "step_seconds"
        elif word and not name.endswith(word):
            name = MEMORY.get(name, f"{name}_{word}")
        yield name, scaled(value, factor)


def _bare(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, number and unit of fields with nothing between name and number: between bars, or in a list."""
    if "|" in text:
        found = [BARE.fullmatch(field) for field in text.split("|")]
    else:
        found = [BARE.fullmatch(field) for field in LIST.split(text.strip(" :,;>-])"))]
        found = found if len(found) > 1 and all(found) else []
    yield from ((each[1], each[2], each[3] or "") for each in found if each is not None)


def _add_below(run: RunBuilder, below: Figures, line: str, at: LoggedStep) -> None:
    """Add the content of a line without a step: memory so far, versions, GPUs by nvidia-smi, or one value."""
    facts = run.facts
    if "iB" in line and len(line) < 500:
        for name, value in _pairs(line):
            if name.endswith("_bytes"):
                run.add(name, value, at.step, rank=at.rank, attempt=at.attempt)
    elif (found := VERSION.match(line)) is not None:
        facts[found[1].lower()] = found[2]
        if found[3]:
            facts["cuda"] = found[3].rstrip(".")
    elif (device := DEVICE.match(line)) is not None:
        facts["gpu"], facts["gpus"] = device[2], max(facts.get("gpus", 0), int(device[1]) + 1)
    elif at.step != NO_STEP and not below.add(line, at):
        for name, _ in _pairs(line):
            run.leave_out("figures in lines that have no step", name)


class StepDurations:
    """The time of each step, if the lines have only the training time so far; a step ends at its last line."""

    def __init__(self, run: RunBuilder) -> None:
        """Start empty; call `finish` when all lines are read."""
        self._run = run
        self._lines: list[tuple[int, float, int]] = []
        """Step, training time and attempt of the last line of each step since the last one that was added."""
        self._is_ours = False
        at_end(self._add_ended)

    def add(self, step: int, time: float, attempt: int) -> None:
        """Add a line: its step, the training time so far (NaN if it has none) and its attempt."""
        if math.isnan(time):
            return
        if self._lines and self._lines[-1][::2] == (step, attempt):
            self._lines.pop()
        self._lines.append((step, time, attempt))

    def finish(self) -> None:
        """Add the time of every step, also of the last."""
        if "step_seconds" in self._run.columns and not self._is_ours:
            return
        for (step, time, attempt), (following, end, same) in pairwise(self._lines):
            seconds = (end - time) / max(following - step, 1)
            if seconds >= 0 and attempt == same:
                self._is_ours = True
                self._run.add("step_seconds", seconds, following, end, 0, attempt)
        del self._lines[:-1]

    def _add_ended(self) -> None:
        """Add the time of the steps that have ended: the last line may not be the last one of its step."""
        last = self._lines.pop() if self._lines else None
        self.finish()
        if last is not None:
            self._lines.append(last)


FORMAT = ImportFormat(
    "step_log",
    "log lines such as step:10 loss:2.5",
    recognises,
    fill,
    ("no line has a step and named numbers", "give lines such as step:10 loss:2.5"),
)
