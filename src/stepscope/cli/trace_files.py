"""Read and analyse the traces in files: one after the other, or many in parallel, none of them trusted."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.cli.text.progress import progress
from stepscope.core.errors import StepscopeError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from stepscope.analysis.trace.ranks import Extract
    from stepscope.cli.text.progress import Advance

ENDINGS = (".json", ".json.gz", ".tar", ".tar.gz", ".tgz", ".zip")
SERIAL_BYTES = 24 << 20
"""Bytes in files below which starting other processes costs more than it brings."""
WORKERS = 8
ADDRESS_BYTES = 8 << 30
"""Address space that the child that reads, and each of its workers, may take beside what it begins with; a trace that
needs more ends in an error, not in a dead machine."""


@dataclass(frozen=True)
class Question:
    """What to find out about every trace."""

    window: str = "gpu"
    top: int | None = 20
    events: int | None = None
    """Events to keep of each trace; None: the reader's own limit."""


class Answer(NamedTuple):
    """What one trace tells."""

    facts: dict[str, Any]
    extract: Extract
    """What the comparison of ranks needs of it."""


class Failure(NamedTuple):
    """A file that could not be read, and why."""

    file: str
    error: str


def expand(paths: list[str]) -> list[str]:
    """Return the files: those given, and in folders everything that may be a trace.

    Raises:
        UsageError: a folder has no trace.
    """
    found: list[str] = []
    for path in paths:
        if not os.path.isdir(path):
            found.append(path)
            continue
        inside = [os.path.join(at, name) for at, _, names in os.walk(path) for name in names if name.endswith(ENDINGS)]
        if not inside:
            raise UsageError(f"read traces from '{path}'", "there is no .json or .json.gz in it", "give trace files")
        found += sorted(inside)
    return found


def answer_all(
    files: list[str], question: Question, options: argparse.Namespace | None = None
) -> Iterator[Answer | Failure]:
    """Yield what every trace tells, in the order of the files; `options` of the command may want no progress."""
    sizes = [os.path.getsize(path) if os.path.isfile(path) else 0 for path in files]
    workers = min(WORKERS, os.cpu_count() or 1, len(files))
    if workers < 2 or sum(sizes) < SERIAL_BYTES:
        with progress("reading", sum(sizes), "bytes", options=options) as advance:
            for path in files:
                advance(0, os.path.basename(path))
                yield from answer(path, question, _Share(advance))
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    from stepscope.importers.traces.text import Limits

    own = replace(question, events=(question.events or Limits.events) // workers)
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(workers, mp_context=context) as pool,
        progress("reading", sum(sizes), "bytes", options=options) as advance,
    ):
        for size, found in zip(sizes, pool.map(_answers, files, [own] * len(files)), strict=True):
            advance(size)
            yield from found


class _Share:
    """Tells progress of one file, of which it is said how much of the whole is read."""

    def __init__(self, advance: Advance) -> None:
        self._advance, self._read = advance, 0

    def __call__(self, read: int, whole: int) -> None:  # noqa: ARG002 - the sum of all files is known
        self._advance(read - self._read)
        self._read = read


def _answers(path: str, question: Question) -> list[Answer | Failure]:
    return list(answer(path, question))


def answer(path: str, question: Question, told: Callable[[int, int], None] | None = None) -> Iterator[Answer | Failure]:
    """Yield what every trace in a file tells; a file that cannot be read is a failure among the answers."""
    from stepscope.analysis.trace.ranks import extract
    from stepscope.analysis.trace.summary import choose_window, summary
    from stepscope.importers.traces.chrome_trace import read_traces
    from stepscope.importers.traces.text import Limits

    limits = Limits() if question.events is None else Limits(events=question.events)
    try:
        for trace in read_traces(path, limits=limits, progress=told):
            window = choose_window(trace, question.window)
            yield Answer(summary(trace, window, question.top), extract(trace))
    except StepscopeError as error:
        yield Failure(path, str(error))
    except MemoryError:
        short = StepscopeError(f"analyse the trace '{path}'", "memory is short", "record a shorter trace")
        yield Failure(path, str(short))
