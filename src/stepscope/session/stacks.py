"""Let the watcher see the stacks of this process: one signal handler that writes them to a file, and nothing else."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading

SIGNAL: int | None = signal.SIGRTMIN + 9 if hasattr(signal, "SIGRTMIN") else None
"""Never SIGUSR1 or SIGUSR2, which belong to SLURM, submitit and Lightning. None if there are no such signals."""
_IN_USE: set[int] = set()
"""Signals with a handler of ours: of two concurrent runs in one process the first has the stacks."""
_LEFT: list[int] = []
"""Files of handlers that had to stay; the next handler replaces them."""


class Stacks:
    """The handler while it is installed; `register` installs it."""

    def __init__(self, descriptor: int, number: int, *, removable: bool) -> None:
        self._descriptor, self._number, self._removable = descriptor, number, removable

    def unregister(self) -> None:
        """Remove the handler.

        A signal may be on its way, and without any handler it would end the process. So the handler stays, writing to a
        file that nothing reads, if it was installed by a thread that could not have signals ignored before it.
        """
        if self._removable:
            self.forget()
        elif self._descriptor >= 0:
            _IN_USE.discard(self._number)
            _LEFT.append(self._descriptor)
            self._descriptor = -1

    def forget(self) -> None:
        """Remove the handler in any case: in the child of a fork, to which the watcher never sends the signal."""
        if self._descriptor < 0:
            return
        _IN_USE.discard(self._number)
        with contextlib.suppress(RuntimeError, ValueError):  # another handler was installed since
            faulthandler.unregister(self._number)
        with contextlib.suppress(OSError):  # closed by code that closes everything, such as a daemon
            os.close(self._descriptor)
        self._descriptor = -1


def register(path: str | os.PathLike[str], number: int | None = SIGNAL) -> Stacks | None:
    """Append the stacks of all threads to a new file at `path` whenever signal `number` comes.

    The handler is C code that needs no interpreter lock: it works while other C code holds it. Returns None if the
    signal is taken or does not exist, or the file cannot be created: then there are no stacks.
    """
    if number is None or number in _IN_USE or not hasattr(faulthandler, "register"):
        return None
    before = signal.getsignal(number)
    if before not in (signal.SIG_DFL, signal.SIG_IGN):
        return None
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
    except OSError:  # the watcher finds no file, and reports a hang without stacks
        return None
    removable = before is signal.SIG_IGN
    if threading.current_thread() is threading.main_thread():
        with contextlib.suppress(ValueError):  # the main thread of a subinterpreter may not
            signal.signal(number, signal.SIG_IGN)  # restored by unregister: the default would end the process
            removable = True
    try:
        faulthandler.register(number, file=descriptor, all_threads=True, chain=False)
    except (RuntimeError, OSError, ValueError):
        os.close(descriptor)
        return None
    _IN_USE.add(number)
    while _LEFT:
        os.close(_LEFT.pop())
    return Stacks(descriptor, number, removable=removable)
