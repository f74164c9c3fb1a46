"""Threads in the user's process that nobody there notices: no signal reaches them, and `threading` lists few."""

from __future__ import annotations

import _thread
import contextlib
import signal
from types import BuiltinFunctionType
from typing import TYPE_CHECKING

from stepscope.core.spawn import SpawnError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

MOST_NAME = 15
"""Characters of a name that the kernel keeps."""


def has_native_threads() -> bool:
    """Return whether threads are the system's: gevent replaces them, and then one that waits stops all others."""
    return isinstance(_thread.start_new_thread, BuiltinFunctionType)


def start_native_thread(work: Callable[[], None], name: str) -> None:
    """Run `work`, which should not raise, in a thread that the kernel knows by this name; nobody waits for its end.

    Raises SpawnError if there are no such threads, or no more of them.
    """
    if not has_native_threads():
        raise SpawnError("another library has replaced threads")
    try:
        with _signals_blocked():
            _thread.start_new_thread(_run, (work, name[:MOST_NAME]))
    except RuntimeError as error:
        raise SpawnError(str(error)) from error


def start_without_signals(thread: threading.Thread) -> None:
    """Start a thread to which no signal is delivered; raises RuntimeError if there are no more threads.

    A process that it starts would take none either, except by `spawn.start_detached`.
    """
    with _signals_blocked():
        thread.start()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block all signals: a thread that starts meanwhile blocks them from its first moment.

    A signal that the program has blocked, to wait for it, would be delivered to a thread that has not, and end the
    process.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(work: Callable[[], None], name: str) -> None:
    with contextlib.suppress(OSError), open("/proc/thread-self/comm", "w", encoding="ascii") as file:
        file.write(name)
    work()
