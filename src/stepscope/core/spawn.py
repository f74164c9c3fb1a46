"""Starts our own programs next to the training, independent of the user's working directory and path."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BOOT = """
import importlib.util, os, sys
for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
    if int(name) > 2 and name not in sys.argv[4].split(","):
        try:
            os.close(int(name))
        except OSError:
            pass
package, module, paths = sys.argv[1], sys.argv[2], sys.argv[3].split(chr(0x1f))
start = package + "/__init__.py"
spec = importlib.util.spec_from_file_location("stepscope", start, submodule_search_locations=[package])
loaded = importlib.util.module_from_spec(spec)
sys.modules["stepscope"] = loaded
spec.loader.exec_module(loaded)
sys.path += [path for path in paths if path and path not in sys.path]
sys.exit(importlib.import_module(module).main(sys.argv[5:]))
"""
"""Close what C code of the parent let us inherit, except what is meant for us. Load exactly the parent's stepscope;
anything else comes from the interpreter's own path first (a user's random.py must not shadow the standard library),
then from the parent's."""

KEPT_FROM = 50
"""The number under which a started program finds the first of the open files that it is given."""
_OUT_OF_THE_WAY = 100
"""Our copies of these files have higher numbers, so that none is overwritten before it is passed on."""
_SHELL = "/bin/sh"
_SHELL_DETACH = 'cd / && { "$@" <&3 3<&- & } 3<&0'
_DETACH = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
os.chdir("/")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""A second fork: the program must not be a child that the user's os.wait() would meet. A shell does it in 2 ms, a
second interpreter, for containers without one, in 10."""


class SpawnError(Exception):
    """No process can be started here; the text has the reason."""


def arguments(module: str, *values: str, keep: Sequence[int] = ()) -> list[str]:
    """Return the interpreter's arguments that run `main` of one of our modules, which keeps these open files."""
    package = str(Path(__file__).resolve().parents[1])
    here = sys.path[0] if sys.path else ""
    paths = [path for path in sys.path if path and path != here and os.path.isabs(path)]
    paths.append(str(Path(package).parent))
    return ["-I", "-c", _BOOT, package, module, chr(0x1F).join(paths), ",".join(map(str, keep)), *values]


def _absolute(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program that starts in another directory: paths in it must mean the same there."""
    paths = {name: os.path.abspath(environ[name]) for name in ("STEPSCOPE_RUNTIME_DIR", "TMPDIR") if environ.get(name)}
    return {**environ, **paths}


def interpreter() -> str:
    """Return the path of the running interpreter; raise SpawnError without one, as in an embedding program."""
    if not sys.executable or not os.access(sys.executable, os.X_OK):
        raise SpawnError("this process does not know its Python interpreter")
    if not (Path(__file__).resolve().parents[1] / "__init__.py").is_file():
        raise SpawnError("stepscope is not installed as plain files")
    return sys.executable


def _inheritable() -> list[int]:
    """Return the open files that a new program would get; ours are not among them, those of C code may be."""
    found = []
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):  # closed meanwhile, as that of the listing itself
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append(int(name))
    return found


def _launcher(program: list[str]) -> list[str]:
    if os.access(_SHELL, os.X_OK):
        return [_SHELL, "-c", _SHELL_DETACH, "stepscope", *program]
    return [program[0], "-I", "-S", "-c", _DETACH, *program[1:]]


def _pidfd() -> int | None:
    try:
        return os.pidfd_open(os.getpid()) if hasattr(os, "pidfd_open") else None
    except OSError:  # an old kernel, or a sandbox
        return None


def start_detached(module: str, *values: str, keep: Sequence[int] = ()) -> None:
    """Start `module` fully detached: not a child, no terminal, no open file of ours except those in `keep`.

    It finds these as KEPT_FROM, KEPT_FROM + 1, and so on.

    Its standard input is a pidfd of this process where the system supports that, so that it can always find out how we
    ended. Takes a few ms, until the first of two forks has happened.

    Raises:
        SpawnError: no process can be started.
    """
    numbers = range(KEPT_FROM, KEPT_FROM + len(keep))
    command = _launcher([interpreter(), *arguments(module, *values, keep=numbers)])
    nowhere: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, at, os.devnull, os.O_RDWR, 0) for at in (0, 1, 2)]
    nowhere += [(os.POSIX_SPAWN_CLOSE, number) for number in _inheritable()]
    ourselves = _pidfd()
    if ourselves is not None:
        nowhere.append((os.POSIX_SPAWN_DUP2, ourselves, 0))
    copies: list[int] = []
    try:
        for number, kept in zip(numbers, keep, strict=True):
            copies.append(fcntl.fcntl(kept, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY))
            nowhere.append((os.POSIX_SPAWN_DUP2, copies[-1], number))
        # A session of its own: a Ctrl-C now, or a closed terminal, does not reach us.
        # Signals that the program has blocked mean something to us.
        first = os.posix_spawn(
            command[0], command, _absolute(os.environ), file_actions=nowhere, setsid=True, setsigmask=()
        )
    except (OSError, ValueError, NotImplementedError) as error:
        raise SpawnError(str(error)) from error
    finally:
        for descriptor in copies if ourselves is None else [*copies, ourselves]:
            os.close(descriptor)
    try:
        status = os.waitpid(first, 0)[1]
    except ChildProcessError:  # SIGCHLD is ignored, or the user's os.wait() was quicker
        return
    if status != 0:
        raise SpawnError("the interpreter did not start")
