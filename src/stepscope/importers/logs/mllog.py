"""MLPerf log lines: `:::MLLOG {"time_ms": …, "key": "eval_accuracy", "value": 0.92, "metadata": {"step": 384}}`."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.core.ring import NO_STEP
from stepscope.importers.points import Points
from stepscope.importers.rows import left_out, values
from stepscope.importers.source import json_value, lines, unreadable
from stepscope.importers.words import canonical_names, number, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.importers.imported import Imported
    from stepscope.importers.source import Head

NAME = "mllog"
MARK = ":::MLLOG"
TRACKED = {"tracked_stats", "eval_accuracy", "eval_error", "eval_loss", "train_loss", "throughput", "eval_result"}
"""Keys that are measured repeatedly; any other point in time is a fact of the run."""
TOLERANCE = 0.25
"""Maximum relative difference between a program's throughput and that of its blocks to count as the same quantity."""
MOST_EVENTS = 5_000_000
"""Maximum lines kept."""


class Event(NamedTuple):
    """One line."""

    time: float
    """Seconds since 1970."""
    key: str
    value: Any
    about: dict[str, Any]
    """Its metadata: step, samples_count, status and where in the program it was logged."""

    @property
    def step(self) -> int | None:
        """The step, if the line has it."""
        return whole(self.about.get("step", self.about.get("step_num")))

    @property
    def samples(self) -> int | None:
        """Samples seen so far, if the line has them."""
        return whole(self.about.get("samples_count"))


class Block(NamedTuple):
    """The training between two evaluations."""

    time: float
    """Its end, in seconds since 1970."""
    step: int
    """Its last step."""
    steps: int
    seconds: float


def recognises(head: Head) -> bool:
    """Return whether a text has an MLLOG line."""
    return f"{MARK} {{".encode() in head.data


def read(path: str) -> Imported:
    """Return the tracked values, and step time and throughput by block if they are not tracked themselves."""
    points = Points()
    events = list(_events(path, points))
    if not events:
        raise unreadable(path, "no line of MLLOG in it is whole", "check whether the log was cut")
    facts = _facts(events)
    batch = _positive(facts.get("global_batch_size"))
    if _counts_samples(events, batch):
        points.note("steps are counted in samples there; they were divided by the global batch size")
        events = [_by_batch(event, batch) for event in events]
    for event, after in zip(events, [*events[1:], None], strict=True):
        if event.key in TRACKED:
            if event.step is None and after is not None and after.key == "block_stop":
                _add(points, after, event, batch, "block/")
            else:
                _add(points, event, event, batch)
    _add_evaluations(points, events, batch)
    _add_blocks(points, list(_blocks(events, batch)), batch)
    return points.imported(path, NAME, facts | _durations(events))


def _events(path: str, points: Points) -> Iterator[Event]:
    left = MOST_EVENTS
    for line in lines(path, points.note):
        _, mark, text = line.partition(MARK)
        if not mark:
            continue
        found = json_value(text)
        time = number(found.get("time_ms")) if isinstance(found, dict) else None
        left -= 1
        if time is None or left < 0:
            points.note("lines of MLLOG that are cut or too many, left out")
            continue
        about = found.get("metadata")
        yield Event(time / 1e3, str(found.get("key")), found.get("value"), about if isinstance(about, dict) else {})


def _facts(events: Sequence[Event]) -> dict[str, Any]:
    """Return the run's own description: hyperparameters, submitter, machine."""
    single = (event for event in events if event.key not in TRACKED)
    return {event.key: event.value for event in single if isinstance(event.value, (str, int, float, bool))}


def _positive(value: Any) -> float:
    """Return a batch size, or 0 if it is invalid."""
    found = number(value)
    return found if found is not None and 1 <= found < 1e12 else 0.0


def _counts_samples(events: Sequence[Event], batch: float) -> bool:
    """Return whether the steps of a log are really samples: its last step is its last count of samples."""
    steps = [event.step for event in events if event.step is not None]
    samples = [event.samples for event in events if event.samples is not None]
    return batch > 1 and bool(steps) and bool(samples) and max(steps) >= max(samples) > 0


def _by_batch(event: Event, batch: float) -> Event:
    return event if event.step is None else event._replace(about=event.about | {"step": int(event.step / batch)})


def _step(event: Event, batch: float) -> int | None:
    """Return the step of a line: as given, else computed from the samples seen."""
    if event.step is not None:
        return event.step
    return int(event.samples / batch) if event.samples is not None and batch else None


def _add(points: Points, place: Event, event: Event, batch: float, prefix: str = "") -> None:
    """Add the values of one line at the step of `place`; the learning rate is in its metadata.

    A line without a step right before the end of a block summarizes the block: its samples are the block's alone.
    """
    step = _step(place, batch)
    found = event.value if isinstance(event.value, dict) else {event.key: event.value}
    for name, value in values({"lr": event.about.get("lr")} | found, left_out(points)):
        points.add(prefix + name, value, NO_STEP if step is None else step, event.time)


def _intervals(events: Sequence[Event]) -> Iterator[tuple[str, float, Event]]:
    """Yield kind, duration in seconds and end of each interval: `eval_start` to `eval_stop` is one of `eval`."""
    began: dict[str, float] = {}
    for event in events:
        kind, _, edge = event.key.rpartition("_")
        if edge == "start":
            began[kind] = event.time
        elif edge == "stop" and kind in began:
            yield kind, event.time - began.pop(kind), event


def _add_evaluations(points: Points, events: Sequence[Event], batch: float) -> None:
    """Add the duration of each evaluation."""
    for kind, seconds, event in _intervals(events):
        if kind == "eval":
            step = _step(event, batch)
            points.add("phase/evaluation", seconds, NO_STEP if step is None else step, event.time)


def _blocks(events: Sequence[Event], batch: float) -> Iterator[Block]:
    """Yield the blocks of training between evaluations."""
    done = 0
    for kind, seconds, event in _intervals(events):
        step = _step(event, batch)
        if kind == "block" and step is not None and step > done and seconds > 0:
            yield Block(event.time, step, step - done, seconds)
            done = step


def _add_blocks(points: Points, blocks: Sequence[Block], batch: float) -> None:
    """Add step time and throughput by block if no line has them.

    A tracked `throughput` counts samples if it agrees with the blocks; some programs count tokens.
    """
    if "step_seconds" not in canonical_names(points.columns).values():
        for block in blocks:
            points.add("step_seconds", block.seconds / block.steps, block.step, block.time)
    rates = [batch * block.steps / block.seconds for block in blocks]
    tracked = points.columns.get("throughput")
    if tracked is not None and rates and _alike(median(tracked.value), median(rates)):
        points.columns["samples_per_second"] = points.columns.pop("throughput")
    elif batch:
        for block, rate in zip(blocks, rates, strict=True):
            points.add("samples_per_second", rate, block.step, block.time)


def _alike(one: float, other: float) -> bool:
    return other > 0 and 1 - TOLERANCE < one / other < 1 + TOLERANCE


def _durations(events: Sequence[Event]) -> dict[str, Any]:
    """Return how long initialization and the run took, in seconds, and how the run ended."""
    first, last = ({event.key: event for event in order} for order in (reversed(events), events))
    found: dict[str, Any] = {}
    for kind in ("init", "run"):
        if f"{kind}_start" in first and f"{kind}_stop" in last:
            found[f"{kind}_seconds"] = last[f"{kind}_stop"].time - first[f"{kind}_start"].time
    if "run_stop" in last:
        found["status"] = last["run_stop"].about.get("status")
    return found
