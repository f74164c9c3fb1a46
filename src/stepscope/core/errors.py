"""The one exception family. Every message reads: cannot <verb> <object>: <cause>; <what to do>."""

from __future__ import annotations


class StepscopeError(Exception):
    """Something could not be done; the command line prints the message and exits with 1."""

    exit_code = 1

    def __init__(self, what: str, cause: object, remedy: str) -> None:
        """Build the message from its three parts.

        Args:
            what: verb and object, as in "open run 'mnist'" (the word "cannot" is added).
            cause: why it failed.
            remedy: what the user can do next.
        """
        super().__init__(f"cannot {what}: {cause}; {remedy}")
        self.what = what
        self.cause = str(cause)
        self.remedy = remedy


class UsageError(StepscopeError):
    """The request itself is wrong; the command line exits with 2."""

    exit_code = 2


def in_words(error: BaseException, most: int = 500) -> str:
    """Return the kind and the text of an error, at most so many characters; never raises."""
    try:
        text = str(error)
        return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:most]
    except Exception as second:  # noqa: BLE001 - `__str__` of a user's exception; the first one must not be hidden
        return f"{type(error).__name__}: (no text: {type(second).__name__})"
