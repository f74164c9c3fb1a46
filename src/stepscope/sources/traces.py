"""Read and analyse profiler traces: one file after another, or many in parallel, in a confined process.

`analyse(["rank0.json", "rank1.json"])` returns the facts that `stepscope trace --json` prints.
"""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.importers.confinement import ChildLimits, confined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.analysis.trace.collectives import Extract
    from stepscope.core.trace import Trace

ENDINGS = (".json", ".json.gz", ".tar", ".tar.gz", ".tgz", ".zip")
SERIAL_BYTES = 24 << 20
"""Bytes in files below which starting other processes costs more than it saves."""
WORKERS = 8
ADDRESS_BYTES = 8 << 30
"""Address space that the reading process, and each of its workers, may take in addition to what it starts with; a trace
that needs more ends in an error, not in a dead machine."""


@dataclass(frozen=True)
class TraceOptions:
    """How to analyse traces."""

    window: str = "gpu"
    """`gpu` (all device events), `steps` (the profiler's steps), or START:END in microseconds."""
    top: int | None = 20
    """Rows of the tables of kernels and operators; None: all."""
    compare: bool = False
    """The first two files are the trace before and the trace after a change, not the ranks of one job."""
    after: Callable[[Trace, str], dict[str, Any]] | None = None
    """Called in the confined process with the first trace and the window; its result is the fact `perfetto`."""
    events: int | None = None
    """Events to keep of each trace; None: the reader's own limit."""

    @property
    def kept_files(self) -> int:
        """Files whose first trace is still needed after its summary."""
        return 2 if self.compare else 1 if self.after is not None else 0


class AnalysedTrace(NamedTuple):
    """The result of one trace."""

    facts: dict[str, Any]
    extract: Extract
    """What the comparison of ranks needs."""
    trace: Trace | None = None
    """The trace itself, if it is still needed."""


class UnreadableTrace(NamedTuple):
    """A file that could not be read, and why."""

    file: str
    error: str


def expand(paths: list[str]) -> list[str]:
    """Return the files: those given, and every possible trace in folders. Raises UsageError if a folder has none."""
    files: list[str] = []
    for path in paths:
        found = [os.path.join(at, name) for at, _, names in os.walk(path) for name in names if name.endswith(ENDINGS)]
        inside = found if os.path.isdir(path) else [path]
        if not inside:
            raise UsageError(f"read traces from '{path}'", "there is no .json or .json.gz in it", "give trace files")
        files += sorted(inside)
    return files


def analyse(
    files: list[str], options: TraceOptions | None = None, reading: Callable[[int], Any] | None = None
) -> dict[str, Any]:
    """Return the facts of traces, read and analysed by a child process with limits: a file is not trusted.

    Files are traces or archives of traces; see `expand` for folders. To show progress, `reading` gets the number of
    bytes and returns a context manager around a function that is called with the bytes read and the name of the file.
    Raises StepscopeError if the traces take more than the limits allow.
    """
    options = options or TraceOptions()
    named = f"the trace '{files[0]}'" if len(files) == 1 else f"{len(files)} traces"

    def work() -> Iterator[bytes]:
        yield json.dumps(_gathered(files, options, reading), default=lambda number: number.item()).encode()

    facts: dict[str, Any] = json.loads(confined(f"analyse {named}", work, ChildLimits.of(files, ADDRESS_BYTES)))
    return facts


def _gathered(files: list[str], options: TraceOptions, reading: Callable[[int], Any] | None) -> dict[str, Any]:
    results = _read_all(files, options, reading)
    analysed = [result for result in results if isinstance(result, AnalysedTrace)]
    failed = [result for result in results if isinstance(result, UnreadableTrace)]
    facts: dict[str, Any] = {"ranks": [result.facts for result in analysed]}
    if len(analysed) > 1 and not options.compare:
        from stepscope.analysis.trace.ranks import compare_ranks

        facts["many_ranks"] = _with_findings(compare_ranks([result.extract for result in analysed]))
    if failed:
        facts["failed"] = [result._asdict() for result in failed]
    kept = [result.trace for result in analysed if result.trace is not None]
    if options.compare and len(kept) > 1:
        from stepscope.analysis.trace.compare import compare_traces

        facts["comparison"] = _with_findings(compare_traces(kept[0], kept[1]))
    if options.after is not None and isinstance(results[0], AnalysedTrace) and results[0].trace is not None:
        facts["perfetto"] = options.after(results[0].trace, options.window)
    return facts


def _with_findings(facts: dict[str, Any]) -> dict[str, Any]:
    return {**facts, "findings": [finding.facts() for finding in facts.get("findings", [])]}


def _read_all(
    files: list[str], options: TraceOptions, reading: Callable[[int], Any] | None
) -> list[AnalysedTrace | UnreadableTrace]:
    sizes = [os.path.getsize(path) if os.path.isfile(path) else 0 for path in files]
    with reading(sum(sizes)) if reading is not None else nullcontext(lambda _bytes, _file: None) as advance:
        return list(_results(files, sizes, options, advance))


def _results(
    files: list[str], sizes: list[int], options: TraceOptions, advance: Callable[[int, str], object]
) -> Iterator[AnalysedTrace | UnreadableTrace]:
    """Yield the results of all files in order; those whose trace is still needed are read in this process."""
    workers = min(WORKERS, os.cpu_count() or 1, len(files) - options.kept_files)
    serial = len(files) if workers < 2 or sum(sizes) < SERIAL_BYTES else options.kept_files
    for number, path in enumerate(files[:serial]):
        advance(0, os.path.basename(path))
        yield from _read(path, options, advance, keep=number < options.kept_files)
    if serial == len(files):
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    from stepscope.importers.traces.text import TraceLimits

    # A function of the command line cannot be sent to a worker, and no worker needs it.
    own = replace(options, events=(options.events or TraceLimits.events) // workers, after=None)
    rest = files[serial:]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for size, results in zip(sizes[serial:], pool.map(_in_worker, rest, [own] * len(rest)), strict=True):
            advance(size, "")
            yield from results


def _in_worker(path: str, options: TraceOptions) -> list[AnalysedTrace | UnreadableTrace]:
    return list(_read(path, options))


def _read(
    path: str, options: TraceOptions, advance: Callable[[int, str], object] | None = None, *, keep: bool = False
) -> Iterator[AnalysedTrace | UnreadableTrace]:
    """Yield the result of every trace in a file; `keep` keeps the first trace itself."""
    from stepscope.analysis.trace.collectives import extract
    from stepscope.analysis.trace.summary import choose_window, summary
    from stepscope.importers.traces.chrome_trace import read_traces
    from stepscope.importers.traces.text import TraceLimits

    limits = TraceLimits() if options.events is None else TraceLimits(events=options.events)
    done = 0

    def progress(read: int, _whole: int) -> None:
        nonlocal done
        if advance is not None:
            advance(read - done, "")
        done = read

    try:
        for number, trace in enumerate(read_traces(path, limits=limits, progress=progress)):
            window = choose_window(trace, options.window)
            facts = summary(trace, window, options.top)
            yield AnalysedTrace(facts, extract(trace), trace if keep and not number else None)
    except StepscopeError as error:
        yield UnreadableTrace(path, str(error))
    except MemoryError:
        short = StepscopeError(f"analyse the trace '{path}'", "memory is short", "record a shorter trace")
        yield UnreadableTrace(path, str(short))
