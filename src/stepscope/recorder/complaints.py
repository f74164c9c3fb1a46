"""Report each kind of problem once, count every one, and never raise into the training."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, TextIO

from stepscope.core.errors import in_words

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

MOST_CHARACTERS = 300
"""Length at which the cause of a problem is cut."""


class Complaints:
    """Count problems by kind; the first of each kind is printed on stderr with its remedy."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to `stream`, by default to whatever sys.stderr is when a problem is reported."""
        self._stream = stream
        self.counts: Counter[str] = Counter()

    def say(self, kind: str, message: str) -> None:
        """Count one problem of `kind`, and print `message` if it is the first."""
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            tell(message, self._stream)

    def shield(self, kind: str, task: str, remedy: str = "the training goes on") -> Shield:
        """Return a context that reports an exception as "cannot <task>: <cause>; <remedy>" and does not raise it."""
        return Shield(self, kind, task, remedy)


class Shield:
    """The wall between our code, or the user's objects that we call, and the training."""

    __slots__ = ("_kind", "_notices", "_remedy", "_task", "failed")

    def __init__(self, notices: Complaints, kind: str, task: str, remedy: str) -> None:
        self._notices, self._kind, self._task, self._remedy = notices, kind, task, remedy
        self.failed = False
        """Whether an exception was caught."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Report an exception and stop it; interrupts and exits go on."""
        if not isinstance(error, Exception):
            return False
        self.failed = True
        self._notices.say(self._kind, f"cannot {self._task}: {in_words(error, MOST_CHARACTERS)}; {self._remedy}")
        return True


def tell(message: str, stream: TextIO | None = None) -> None:
    """Print one line for the person at the terminal; a closed or broken terminal is ignored."""
    stream = stream or sys.stderr
    try:
        stream.write(f"stepscope: {message}\n")
        stream.flush()
    except (OSError, ValueError, AttributeError, RuntimeError):  # RuntimeError: we are inside a write to it
        return
