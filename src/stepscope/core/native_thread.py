"""A thread in the user's process that nobody there notices: no signal reaches it, and `threading` does not list it."""

from __future__ import annotations

import _thread
import contextlib
import signal
from types import BuiltinFunctionType
from typing import TYPE_CHECKING

from stepscope.core.spawn import SpawnError

if TYPE_CHECKING:
    from collections.abc import Callable

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
        _thread.start_new_thread(_run, (work, name[:MOST_NAME]))
    except RuntimeError as error:
        raise SpawnError(str(error)) from error


def _run(work: Callable[[], None], name: str) -> None:
    # A signal that the program has blocked, to wait for it, would otherwise be delivered here and end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with contextlib.suppress(OSError), open("/proc/thread-self/comm", "w", encoding="ascii") as file:
        file.write(name)
    work()
