"""Write a file in one piece or not at all, or to standard output."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from stepscope.core.errors import StepscopeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

STANDARD = "-"
EVENT_FILES = "events.out.tfevents.*"


@contextlib.contextmanager
def open_output(path: str | None, *, force: bool = False) -> Iterator[BinaryIO]:
    """Open a file to write, or standard output for None and `-`.

    A file gets the permissions that the umask leaves, since exports are shared; it gets its name once it is complete.
    A pipe or a device such as /dev/null is written directly.

    Raises:
        UsageError: the file exists, and `force` is not given.
        StepscopeError: it cannot be written.
    """
    if path in {None, STANDARD}:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(os.path.realpath(str(path)))
    try:
        if target.exists() and not (target.is_file() or target.is_dir()):
            with target.open("wb") as stream:
                yield stream
            return
        with new_file(target, force=force) as temporary, temporary.open("wb") as stream:
            yield stream
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _cannot(target, error) from error


@contextlib.contextmanager
def new_file(target: Path, *, force: bool = False) -> Iterator[Path]:
    """Make an empty file next to `target` that replaces it at the end; on an error nothing is left.

    Raises:
        UsageError: `target` exists, and `force` is not given.
        StepscopeError: it cannot be made.
    """
    target = Path(os.path.realpath(target))
    if target.is_dir():
        raise UsageError(f"write {target}", "it is a folder", "give the name of a file in it")
    if target.exists() and not force:
        raise _taken(target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
        try:
            yield temporary
            _place(temporary, target, force=force)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot(target, error) from error


def write_text(target: Path, text: str) -> None:
    """Write a file in one piece, in place of one that exists; make its folder if it is missing.

    Raises:
        StepscopeError: it cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with new_file(target, force=True) as path:
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _cannot(target, error) from error


@contextlib.contextmanager
def new_folder(target: Path, *, force: bool = False) -> Iterator[Path]:
    """Make a folder next to `target` that replaces it at the end; on an error nothing is left.

    An empty folder is used as it is. With `force` the event files in it are replaced, and nothing else is touched.

    Raises:
        UsageError: `target` is a file, or holds something, and `force` is not given.
        StepscopeError: it cannot be made.
    """
    target = Path(os.path.realpath(target))
    if target.exists() and not target.is_dir():
        raise UsageError(f"write {target}", "it is a file", "give the name of a folder")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if target.is_dir() and any(target.iterdir()) and not force:
            raise _taken(target)
        temporary.mkdir(parents=True)
        try:
            yield temporary
            if target.is_dir() and any(target.iterdir()):
                for old in list(target.rglob(EVENT_FILES)):
                    old.unlink()
                _move(temporary, target)
            else:
                temporary.replace(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise _cannot(target, error) from error


def _move(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        if path.is_file():
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)


def _place(temporary: Path, target: Path, *, force: bool) -> None:
    """Give a file its final name; without `force`, never replace a file that was made meanwhile."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    if not force:
        try:
            os.link(temporary, target)
        except FileExistsError:
            raise _taken(target) from None
        except OSError:  # a file system without hard links
            if target.exists():
                raise _taken(target) from None
        else:
            return
    temporary.replace(target)


def _taken(target: Path) -> UsageError:
    return UsageError(f"write {target}", "it exists already", "choose another name, or replace it with --force")


def _cannot(target: Path, error: OSError) -> StepscopeError:
    return StepscopeError(
        f"write {target}", error.strerror or error, "make room or access there, or choose another place"
    )
