"""Read foreign files in a child process with limits, so that no file can take the command down.

The child has its own limits for address space, CPU time and the size of its result, and returns bytes, never objects.
It is forked, which takes milliseconds; the limits count from the start of the child.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, NoReturn, cast

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.importers.source import size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Work = Callable[[], Iterable[bytes | memoryview]]

ADDRESS_BYTES = 4 << 30
"""Address space that the child may add to what it starts with."""
RESULT_BYTES = 2 << 30
"""Maximum size of the child's result; the points of a file take at most 640 MB."""
CPU_SECONDS, CPU_SECONDS_PER_MB = 120, 2
"""CPU time of the child, plus more for each megabyte of its files. The slowest reader, that of JSON rows, takes a fifth
of a second per megabyte; a compressed file unpacks to up to ten times its size."""
DONE, REFUSED = 0, 1
_ASIDE = 64 << 10
"""Maximum bytes of an error."""


@dataclass(frozen=True)
class ChildLimits:
    """What a child may use."""

    address_bytes: int = ADDRESS_BYTES
    cpu_seconds: int = CPU_SECONDS
    result_bytes: int = RESULT_BYTES

    @classmethod
    def of(cls, paths: Sequence[str], address_bytes: int = ADDRESS_BYTES) -> ChildLimits:
        """Return the limits for some files and folders, by their size."""
        megabytes = sum(map(size_of, paths)) / 1e6
        return cls(address_bytes, CPU_SECONDS + int(CPU_SECONDS_PER_MB * megabytes))


def confined(what: str, work: Work, limits: ChildLimits | None = None) -> bytes:
    """Let a child do some work, and return its result as bytes.

    Args:
        what: verb and object, for the error.
        work: yields the bytes; runs in the child, which returns nothing else.
        limits: what it may use.

    Raises:
        StepscopeError: the work failed, or exceeded a limit.
    """
    limits = limits or ChildLimits()
    with _result_file() as result:
        child = forked()
        if not child:
            _work(work, result, limits)
        status = _wait(child)
        size = result.seek(0, os.SEEK_END)
        result.seek(0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == DONE:
            return result.read(size)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == REFUSED:
            raise refusal(what, result.read(_ASIDE))
        raise StepscopeError(what, ending(status, limits), "check the file, or give a smaller part of it")


def forked() -> int:
    """Fork: return the pid of the child, or 0 in the child."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # else the child would write it a second time
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of libraries, which the child does not use
        return os.fork()


def _result_file() -> contextlib.AbstractContextManager[BinaryIO]:
    """Return an anonymous file that both processes can reach, in memory if the system supports that."""
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):
            return os.fdopen(os.memfd_create("stepscope"), "w+b")
    return cast("contextlib.AbstractContextManager[BinaryIO]", tempfile.TemporaryFile())


def _wait(child: int) -> int:
    """Return how a child ended; it ends with us."""
    try:
        return os.waitpid(child, 0)[1]
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise


def _work(work: Work, result: BinaryIO, limits: ChildLimits) -> NoReturn:
    """Do the work in the child and exit, without the parent's cleanup."""
    code = REFUSED
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        confine(limits)
        try:
            result.writelines(work())
            result.flush()
            code = DONE
        except Exception as error:  # noqa: BLE001 - a reader that fails on a file must report it, not vanish
            _refuse(result, refusal_of(error, limits))
    finally:
        os._exit(code)


def refusal_of(error: Exception, limits: ChildLimits) -> bytes:
    """Return an error of the child as bytes, for `refusal`."""
    kind = ""
    if isinstance(error, StepscopeError):
        kind, parts = type(error).__name__, [error.what, error.cause, error.remedy]
    elif isinstance(error, MemoryError):
        parts = [f"memory is short: reading may take {limits.address_bytes >> 20} MiB"]
    elif isinstance(error, OSError):
        parts = [f"what is in it does not fit into {limits.result_bytes >> 20} MiB ({error.strerror})"]
    else:
        parts = [f"its reader failed ({type(error).__name__}: {error})"]
    return json.dumps([kind, *(part[:4000] for part in parts)]).encode()[:_ASIDE]


def renew_time(limits: ChildLimits) -> None:
    """Give the child its CPU time again: one that follows a live file may work for days, but not for long at a time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = int(used.ru_utime + used.ru_stime) + limits.cpu_seconds
    with contextlib.suppress(OSError, ValueError):  # some systems know a limit but do not let it be set
        resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def confine(limits: ChildLimits) -> None:
    """Set the limits of this process. Narrower limits of the system stay."""
    wanted = {
        resource.RLIMIT_AS: _address_space() + limits.address_bytes,
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_FSIZE: limits.result_bytes,
        resource.RLIMIT_CORE: 0,
    }
    for kind, size in wanted.items():
        hard = resource.getrlimit(kind)[1]
        soft = size if hard == resource.RLIM_INFINITY else min(size, hard)
        with contextlib.suppress(OSError, ValueError):  # some systems know a limit but do not let it be set
            resource.setrlimit(kind, (soft, hard))


def _address_space() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return 0


def _refuse(result: BinaryIO, data: bytes) -> None:
    with contextlib.suppress(OSError):
        result.seek(0)
        result.truncate()
        result.write(data)
        result.flush()


def refusal(what: str, data: bytes) -> StepscopeError:
    """Return the error in the bytes of `refusal_of`; `what` is verb and object."""
    try:
        kind, *parts = json.loads(data)
    except ValueError:
        kind, parts = "", ["its reader failed"]
    if len(parts) != 3:
        return StepscopeError(what, parts[0], "check the file, or give a smaller part of it")
    return (UsageError if kind == UsageError.__name__ else StepscopeError)(*parts)


def ending(status: int, limits: ChildLimits) -> str:
    """Return how a child ended without a result, as text; `status` is its wait status."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number == signal.SIGXCPU:
        return f"reading it takes more than {limits.cpu_seconds} s of processor time"
    if number == signal.SIGKILL:
        return "its reader was killed; perhaps memory is short"
    return f"its reader ended by signal {number}" if number else "its reader ended without a result"
