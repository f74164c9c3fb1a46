"""Read and analyse the traces in files: one after the other, or many in parallel, none of them trusted."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from stepscope.core.errors import StepscopeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.analysis.trace_ranks import Extract

ENDINGS = (".json", ".json.gz", ".tar", ".tar.gz", ".tgz", ".zip")
SERIAL_BYTES = 24 << 20
"""Bytes in files below which starting other processes costs more than it brings."""
WORKERS = 8
ADDRESS_BYTES = 8 << 30
"""Address space that reading may take in all; a trace that needs more ends in an error, not in a dead machine."""
QUIET_SECONDS = 2.0
"""Time before anything is said about progress."""
LINE_SECONDS = 5.0
"""Time between two lines about progress where there is no terminal."""


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


def answer_all(files: list[str], question: Question) -> Iterator[Answer | Failure]:
    """Yield what every trace tells, in the order of the files."""
    sizes = [os.path.getsize(path) if os.path.isfile(path) else 0 for path in files]
    workers = min(WORKERS, os.cpu_count() or 1, len(files))
    if workers < 2 or sum(sizes) < SERIAL_BYTES:
        with bounded():
            for path in files:
                yield from answer(path, question, Progress(path))
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    from stepscope.importers.trace_text import Limits

    own = replace(question, events=(question.events or Limits.events) // workers)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_bound) as pool:
        progress = Progress(f"{len(files)} files")
        for number, found in enumerate(pool.map(_answers, files, [own] * len(files))):
            progress(number + 1, len(files))
            yield from found


def _answers(path: str, question: Question) -> list[Answer | Failure]:
    return list(answer(path, question))


def answer(path: str, question: Question, progress: Progress | None = None) -> Iterator[Answer | Failure]:
    """Yield what every trace in a file tells; a file that cannot be read is a failure among the answers."""
    from stepscope.analysis.trace_ranks import extract
    from stepscope.analysis.trace_summary import choose_window, summary
    from stepscope.importers.chrome_trace import read_traces
    from stepscope.importers.trace_text import Limits

    limits = Limits() if question.events is None else Limits(events=question.events)
    try:
        for trace in read_traces(path, limits=limits, progress=progress):
            window = choose_window(trace, question.window)
            yield Answer(summary(trace, window, question.top), extract(trace))
    except StepscopeError as error:
        yield Failure(path, str(error))
    except MemoryError:
        short = StepscopeError(f"analyse the trace '{path}'", "memory is short", "record a shorter trace")
        yield Failure(path, str(short))


@contextlib.contextmanager
def bounded(size: int = ADDRESS_BYTES) -> Iterator[None]:
    """Keep this process within so much address space meanwhile (rule S15)."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    _bound(size)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _bound(size: int = ADDRESS_BYTES) -> None:
    limits = [one for one in resource.getrlimit(resource.RLIMIT_AS) if one != resource.RLIM_INFINITY]
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (min([size, *limits]), hard))


class Progress:
    """Says on standard error how far reading is, once it takes a while: in place on a terminal, else line by line."""

    def __init__(self, name: str, stream: TextIO | None = None) -> None:
        """Begin now."""
        self._name, self._stream = os.path.basename(name), stream or sys.stderr
        self._began = self._said = time.monotonic()

    def __call__(self, done: int, whole: int) -> None:
        """Take in that so much of the whole is done."""
        now = time.monotonic()
        terminal = self._stream.isatty()
        if now - self._began < QUIET_SECONDS or now - self._said < (0.2 if terminal else LINE_SECONDS):
            return
        share = min(1.0, done / whole) if whole else 1.0
        if share == 1 and self._said == self._began:
            return
        self._said = now
        text = f"reading {self._name}: {share:4.0%}"
        if 0 < share < 1:
            text += f", about {(now - self._began) * (1 - share) / share:.0f} s left"
        end = "" if terminal and share < 1 else "\n"
        print(f"\r{text:<78}" if terminal else text, end=end, file=self._stream, flush=True)
