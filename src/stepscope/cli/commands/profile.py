"""Profile some steps of a running training from outside.

Asks one training process of this user on this machine, which must use torch and steps. The process writes a Chrome
trace to the folder of the run (open it in ui.perfetto.dev) and reports its slowest operations. Profiled steps are
slower; nothing else changes for the training.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from stepscope.cli.command import add_shared, show
from stepscope.cli.commands.checks import LiveRing, rings
from stepscope.cli.named_run import open_run
from stepscope.cli.text.number import whole
from stepscope.cli.text.terminal import columns
from stepscope.core.errors import StepscopeError
from stepscope.core.events import ours
from stepscope.core.numbers import format_count, format_duration, format_value
from stepscope.core.places import REQUEST_SUFFIX, find_places
from stepscope.core.terminal_text import cut, plain
from stepscope.session.requests import STARTED, TAKEN, ProfileRequest, place
from stepscope.store.layout import RunFolder
from stepscope.store.states import read_nodes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from stepscope.core.places import Places
    from stepscope.store.reader import Past

ANSWER = "profile"
"""Kind of the event with the answer."""
EVERY = 0.25
"""Seconds between two polls for the answer."""
MOST_STEPS = 10_000


class RequestState(NamedTuple):
    """The state of a request."""

    taken: bool = False
    started: bool = False
    result: dict[str, Any] | None = None


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_shared(parser, "run", "dir")
    any_number, some = whole(0, MOST_STEPS), whole(1, MOST_STEPS)
    parser.add_argument("--steps", metavar="N", type=some, default=20, help="steps to record (default: 20)")
    text = "warm-up steps before that (default: 3)"
    parser.add_argument("--warmup", metavar="N", type=any_number, default=3, help=text)
    parser.add_argument("--rank", metavar="R", type=any_number, default=0, help="rank to profile (default: 0)")
    parser.add_argument("--top", metavar="K", type=some, default=5, help="operations to list (default: 5)")
    parser.add_argument("--shapes", action="store_true", help="record tensor shapes")
    parser.add_argument("--stacks", action="store_true", help="record the call stack of each operation")
    parser.add_argument("--memory", action="store_true", help="record allocations and frees")
    parser.add_argument("--no-trace", action="store_true", help="only list the operations, write no trace")
    text = "size limit of the trace in MiB; a larger trace is compressed or dropped (default: 256)"
    parser.add_argument("--max-size", metavar="MIB", type=some, default=256, help=text)
    text = "longest wait for the answer in seconds (default: 120)"
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=120.0, help=text)
    add_shared(parser, "json")


def run(options: argparse.Namespace) -> int:
    """Ask, wait, print the answer."""
    past = open_run(options.run, options.dir)
    target = find_target(past, options.rank, find_places())
    request = ProfileRequest(os.urandom(8).hex(), _wanted(options))
    path = target.path.with_suffix(REQUEST_SUFFIX)
    place(path, request)
    try:
        result = wait(past, target, request.id, options.timeout)
    finally:
        with contextlib.suppress(OSError):  # it was taken, as it should; else it is withdrawn
            path.unlink()
    if result.get("error"):
        cause, _, remedy = str(result["error"]).partition("; ")
        raise StepscopeError(f"profile run {past.id}", cause, remedy or "see `stepscope show`, then ask again")
    facts = _facts(past, result)
    about = {"id": past.id, "path": str(past.path)}
    return show(options, {"run": about, "profile": facts}, lambda *_: lines(facts))


def _wanted(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the profile, as `Run.profile` takes them."""
    return {
        "steps": options.steps,
        "warmup": options.warmup,
        "top": options.top,
        "record_shapes": options.shapes,
        "with_stack": options.stacks,
        "memory": options.memory,
        "export": not options.no_trace,
        "max_bytes": options.max_size << 20,
        "seconds": max(1.0, options.timeout / 2),
    }


def find_target(past: Past, rank: int, places: Places) -> LiveRing:
    """Return the live process of a rank.

    Raises:
        StepscopeError: the run has ended, or no such process of this user is on this machine.
    """
    what = f"profile run {past.id}"
    here = [ring for ring in rings(places) if isinstance(ring, LiveRing) and ring.trainer and _same(ring.run, past)]
    found = [ring for ring in here if ring.rank == rank]
    if found:
        return found[-1]
    if here:
        others = ", ".join(str(number) for number in sorted({ring.rank for ring in here})[:16])
        raise StepscopeError(what, f"rank {rank} is not on this machine", f"choose one that is: --rank {others}")
    state = past.state
    if state != "running":
        raise StepscopeError(what, f"it is {state}", "profile a run that is training; `stepscope runs` lists them")
    cause = "no live process of it belongs to this user on this machine"
    raise StepscopeError(what, cause, "run this command where it trains, as the same user")


def _same(recorded: str, past: Past) -> bool:
    try:
        return os.path.samefile(recorded, past.path)
    except OSError:
        return False


def wait(
    past: Past,
    target: LiveRing,
    request: str,
    timeout: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
    stream: TextIO | None = None,
) -> dict[str, Any]:
    """Wait for the answer to a request, and show the progress.

    Raises:
        StepscopeError: it did not come within `timeout` seconds, or the process ended.
    """
    progress = Progress(sys.stderr if stream is None else stream)
    began = clock()
    try:
        while True:
            answer = look(past, request)
            if answer.result is not None:
                return answer.result
            step, waited = _step(past, target.rank), clock() - began
            verb = "profiles" if answer.started else "has taken the request" if answer.taken else "has been asked"
            told = f"step {format_count(step)}, {format_duration(waited)}"
            progress.show(f"rank {target.rank} (pid {target.pid}) {verb}: {told}")
            if past.state != "running":
                raise StepscopeError(f"profile run {past.id}", f"it is {past.state} now", "see `stepscope show`")
            if waited > timeout:
                raise _silence(past, target, answer, step, waited)
            sleep(EVERY)
    finally:
        progress.close()


def look(past: Past, request: str) -> RequestState:
    """Return the state of a request."""
    mine = {event.get("kind"): event for event in ours(past.events()) if event.get("request") == request}
    return RequestState(TAKEN in mine, STARTED in mine, mine.get(ANSWER))


def _step(past: Past, rank: int) -> int | None:
    """Return the last step of a rank, as its watcher reports it."""
    nodes, _ = read_nodes(RunFolder(past.path))
    steps = [node.ranks[rank].step for node in nodes if rank in node.ranks]
    return max((step for step in steps if step is not None), default=None)


def _silence(past: Past, target: LiveRing, answer: RequestState, step: int | None, waited: float) -> StepscopeError:
    """Return the likely reason why there is no answer."""
    what, span, last = f"profile run {past.id}", format_duration(waited), f"last step {format_count(step)}"
    who = f"rank {target.rank} (pid {target.pid})"
    if not answer.taken:
        cause = f"{who} has not taken the request within {span}: it records nothing ({last})"
        return StepscopeError(what, cause, "check the run with `stepscope show`, then try again or raise --timeout")
    if not answer.started:
        cause = f"{who} took the request, but has ended no step within {span} ({last})"
        return StepscopeError(what, cause, "its loop must use run.step(), or wait longer if a step takes that long")
    cause = f"{who} is still at it after {span} ({last})"
    return StepscopeError(what, cause, "ask for fewer --steps or wait longer; the answer will be an event of the run")


class Progress:
    """A progress line that is rewritten on a terminal; elsewhere only changes are printed, without numbers."""

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        self._stream, self._terminal, self._last = stream, stream.isatty(), ""

    def show(self, text: str) -> None:
        """Show the progress."""
        if self._terminal:
            self._stream.write(f"\r{cut(text, columns() - 1)}\x1b[K")
        elif self._last != text.partition(":")[0]:
            self._last = text.partition(":")[0]
            self._stream.write(f"{self._last} …\n")
        self._stream.flush()

    def close(self) -> None:
        """Clear the line."""
        if self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _facts(past: Past, result: dict[str, Any]) -> dict[str, Any]:
    """Return the answer as plain data: without the fields of every event, and with the path of the trace."""
    facts = {key: value for key, value in result.items() if key not in {"kind", "request", "sequence", "step", "time"}}
    trace = facts.get("trace")
    return {**facts, "trace": None if trace is None else str(past.path / str(trace))}


def lines(facts: dict[str, Any]) -> Iterator[str]:
    """Yield the answer as lines."""
    steps, seconds = facts["steps"], facts["seconds"]
    first, last = (format_count(facts.get(key)) for key in ("first_step", "last_step"))
    where = "" if facts.get("first_step") is None else f" ({first} to {last})"
    each = format_value(seconds / steps, "seconds") if steps else "-"
    who = f"{where} of rank {facts.get('rank', 0)}"
    yield f"{format_count(steps)} steps{who} in {format_duration(seconds)}, {each} each"
    found = facts["operations"]
    if found:
        yield f"Profiler: Top {len(found)} slowest operations:"
    for number, operation in enumerate(found, 1):
        cost = f"{format_count(operation['calls'])} calls, {format_value(operation['seconds'], 'seconds')}"
        yield f"{number}. {plain(operation['name'])} ({operation['share']:.1%} of time)  {cost}"
    if facts.get("operation_seconds"):
        whole = format_value(facts["operation_seconds"], "seconds")
        yield f"of {whole} that all operations took themselves, by the clock of the {facts['clock']}"
    yield from map(plain, facts.get("notes", ()))
    if facts["trace"]:
        size = format_value(facts["trace_bytes"], "bytes")
        yield f"trace {plain(facts['trace'])} ({size}); ui.perfetto.dev opens it"
