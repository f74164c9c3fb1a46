"""The one exception family. Every message reads: cannot <verb> <object>: <cause>; <what to do>."""

from __future__ import annotations

from stepscope.core.walls import attempt


class StepscopeError(Exception):
    """Something could not be done; the command line prints the message and exits with 1."""

    exit_code = 1

    def __init__(self, what: str, cause: object, remedy: str) -> None:
        """Build the message from verb and object, as in "open run 'mnist'", the cause, and what the user can do."""
        super().__init__(f"cannot {what}: {cause}; {remedy}")
        self.what, self.cause, self.remedy = what, str(cause), remedy


class UsageError(StepscopeError):
    """The request itself is wrong; the command line exits with 2."""

    exit_code = 2


def in_words(error: BaseException, most: int = 500) -> str:
    """Return the kind and the text of an error, at most `most` characters; never raises."""
    name = type(error).__name__
    text = attempt(lambda: str(error), lambda second: f"(no text: {type(second).__name__})")  # of a user's exception
    return (f"{name}: {text}" if text else name)[:most]
