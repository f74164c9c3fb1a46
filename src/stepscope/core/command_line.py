"""How to call our program from here, as a person can type it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

PROGRAM = "stepscope"


def typed(executable: str | None = None, path: str | None = None, cwd: str | None = None) -> str:
    """Return how to call `stepscope` in a shell: by its name where the shell finds this very one, else by its path.

    It is installed next to the interpreter `executable`; `path` has the folders that the shell searches, as PATH does.
    """
    python = executable or sys.executable
    beside = os.path.join(os.path.dirname(python), PROGRAM)
    found = shutil.which(PROGRAM, path=path)
    if not os.access(beside, os.X_OK):  # started as a module, or not installed
        return PROGRAM if found else f"{shlex.quote(_near(python, cwd))} -m {PROGRAM}"
    if found and os.path.samefile(found, beside):
        return PROGRAM
    return shlex.quote(_near(beside, cwd))


def _near(path: str, cwd: str | None) -> str:
    """Return a path from here if that is the shorter one."""
    try:
        relative = os.path.relpath(path, cwd)
    except (OSError, ValueError):  # the working directory is gone
        return path
    near = relative if os.sep in relative else os.path.join(os.curdir, relative)
    return near if len(near) < len(path) else path
