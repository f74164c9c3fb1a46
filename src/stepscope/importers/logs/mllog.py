"""MLPerf log lines: `:::MLLOG {"time_ms": …, "key": "eval_accuracy", "value": 0.92, "metadata": {"step": 384}}`."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.importers.rows import values
from stepscope.importers.run_builder import ImportFormat, RunBuilder
from stepscope.importers.source import FileHead, json_value, lines, unreadable
from stepscope.importers.words import canonical_names, number, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


MARK = ":::MLLOG"
TRACKED = {"tracked_stats", "eval_accuracy", "eval_error", "eval_loss", "train_loss", "throughput", "eval_result"}
"""Keys that are measured repeatedly; any other point in time is a fact of the run."""
TOLERANCE = 0.25
"""Maximum relative difference between a program's throughput and that of its blocks to count as the same quantity."""
MOST_LINES = 5_000_000
"""Maximum lines kept."""


class MllogLine(NamedTuple):
    """One line."""

    time: float
    """Seconds since 1970."""
    key: str
    value: Any
    about: dict[str, Any]
    """Its metadata: step, samples_count, status and where in the program it was logged."""
    step: int | None = None
    """As given, else computed from the samples seen."""


class Block(NamedTuple):
    """The training between two evaluations."""

    time: float
    """Its end, in seconds since 1970."""
    step: int
    """Its last step."""
    steps: int
    seconds: float


def recognises(head: FileHead) -> bool:
    """Return whether a text has an MLLOG line."""
    return f"{MARK} {{".encode() in head.data


def fill(path: str, run: RunBuilder) -> None:
    """Read the tracked values, and step time and throughput by block if they are not tracked themselves."""
    found = list(_lines(path, run))
    if not found:
        raise unreadable(path, "no line of MLLOG in it is whole", "check whether the log was cut")
    single = (line for line in found if line.key not in TRACKED)
    run.facts = {line.key: line.value for line in single if isinstance(line.value, (str, int, float, bool))}
    size = number(run.facts.get("global_batch_size"))
    batch = size if size is not None and 1 <= size < 1e12 else 0.0
    found = list(_with_steps(found, batch, run))
    for line, after in zip(found, [*found[1:], found[-1]], strict=True):
        if line.key in TRACKED:
            _add_tracked(run, line, after)
    for kind, seconds, line in _intervals(found):
        if kind == "eval":
            run.add("phase/evaluation", seconds, line.step, line.time)
    _add_blocks(run, list(_blocks(found)), batch)
    run.facts |= _durations(found)


def _add_tracked(run: RunBuilder, line: MllogLine, after: MllogLine) -> None:
    """Add the values of one line; the learning rate is in its metadata.

    A line without a step right before the end of a block summarizes the block: its samples are the block's alone.
    """
    in_block = after.key == "block_stop" and _given_step(line) is None
    found = line.value if isinstance(line.value, dict) else {line.key: line.value}
    for name, value in values({"lr": line.about.get("lr")} | found, run.not_a_number):
        run.add(f"block/{name}" if in_block else name, value, after.step if in_block else line.step, line.time)


def _lines(path: str, run: RunBuilder) -> Iterator[MllogLine]:
    left = MOST_LINES
    for text in lines(path, run.note):
        _, mark, content = text.partition(MARK)
        if not mark:
            continue
        found = json_value(content)
        time = number(found.get("time_ms")) if isinstance(found, dict) else None
        left -= 1
        if time is None or left < 0:
            run.note("lines of MLLOG that are cut or too many, left out")
            continue
        about = found.get("metadata")
        yield MllogLine(time / 1e3, str(found.get("key")), found.get("value"), about if isinstance(about, dict) else {})


def _given_step(line: MllogLine) -> int | None:
    return whole(line.about.get("step", line.about.get("step_num")))


def _with_steps(found: Sequence[MllogLine], batch: float, run: RunBuilder) -> Iterator[MllogLine]:
    """Yield lines with their steps. Some programs count samples as steps: their last step is their last sample."""
    steps = [_given_step(line) for line in found]
    samples = [whole(line.about.get("samples_count")) for line in found]
    last_step, last_sample = (max((one for one in some if one is not None), default=None) for some in (steps, samples))
    is_sample = batch > 1 and last_step is not None and last_sample is not None and last_step >= last_sample > 0
    if is_sample:
        run.note("steps are counted in samples there; they were divided by the global batch size")
    for line, step, seen in zip(found, steps, samples, strict=True):
        if step is not None:
            yield line._replace(step=int(step / batch) if is_sample else step)
        else:
            yield line._replace(step=int(seen / batch)) if seen is not None and batch else line


def _intervals(found: Sequence[MllogLine]) -> Iterator[tuple[str, float, MllogLine]]:
    """Yield kind, duration in seconds and end of each interval: `eval_start` to `eval_stop` is one of `eval`."""
    began: dict[str, float] = {}
    for line in found:
        kind, _, edge = line.key.rpartition("_")
        if edge == "start":
            began[kind] = line.time
        elif edge == "stop" and kind in began:
            yield kind, line.time - began.pop(kind), line


def _blocks(found: Sequence[MllogLine]) -> Iterator[Block]:
    done = 0
    for kind, seconds, line in _intervals(found):
        if kind == "block" and line.step is not None and line.step > done and seconds > 0:
            yield Block(line.time, line.step, line.step - done, seconds)
            done = line.step


def _add_blocks(run: RunBuilder, blocks: Sequence[Block], batch: float) -> None:
    """Add step time and throughput by block if no line has them.

    A tracked `throughput` counts samples if it agrees with the blocks; some programs count tokens.
    """
    if "step_seconds" not in canonical_names(run.columns).values():
        for block in blocks:
            run.add("step_seconds", block.seconds / block.steps, block.step, block.time)
    rates = [batch * block.steps / block.seconds for block in blocks]
    usual = median(rates) if rates else 0.0
    tracked = run.columns.get("throughput")
    if tracked is not None and usual > 0 and abs(median(tracked.value) / usual - 1) < TOLERANCE:
        run.columns["samples_per_second"] = run.columns.pop("throughput")
    elif batch:
        for block, rate in zip(blocks, rates, strict=True):
            run.add("samples_per_second", rate, block.step, block.time)


def _durations(found: Sequence[MllogLine]) -> dict[str, Any]:
    """Return how long initialization and the run took, in seconds, and how the run ended."""
    first, last = ({line.key: line for line in order} for order in (reversed(found), found))
    facts: dict[str, Any] = {}
    for kind in ("init", "run"):
        if f"{kind}_start" in first and f"{kind}_stop" in last:
            facts[f"{kind}_seconds"] = last[f"{kind}_stop"].time - first[f"{kind}_start"].time
    if "run_stop" in last:
        facts["status"] = last["run_stop"].about.get("status")
    return facts


FORMAT = ImportFormat("mllog", "MLPerf log (:::MLLOG)", recognises, fill, reads_on=False)
