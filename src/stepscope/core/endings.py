"""How a run ended, as text: the same for the card, the commands, the page, the report and the alerts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.errors import in_words

if TYPE_CHECKING:
    from collections.abc import Mapping

INTERRUPTED = "interrupted"
"""The state of a run that a person ended: with Ctrl-C, or by closing the notebook that it ran in."""
BY_HAND = "Ctrl-C"
OUT_OF_MEMORY = "out of memory"
PROBABLY_OUT_OF_MEMORY = f"{OUT_OF_MEMORY}, probably"
"""Beginning of the cause of an "oom-killed" run, before a colon and figures; the second if nobody saw the end."""
BAD = ("failed", "killed", "oom-killed", "broken")
NATIVE = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL")
"""Signals of a fault in native code."""


def end_words(state: str, cause: str = "") -> str:
    """Return a state with its cause, as in "failed: exit code 3" or "killed by SIGKILL"."""
    if not cause:
        return state
    return cause if cause.startswith(state) else f"{state}: {cause}"


def is_bad(state: str, cause: str = "") -> bool:
    """Return whether a run ended badly; a finished run did if a critical alert was firing at its end."""
    return bool(cause) if state == "finished" else state in BAD


def end_by_error(error: str) -> tuple[str, str]:
    """Return state and cause of a run that ended with an exception, given as `Type: text`."""
    if error.partition(":")[0] == "KeyboardInterrupt":
        return INTERRUPTED, BY_HAND
    return "failed", error or "an exception that left no text"


def crash_kind(state: str, cause: str) -> str:
    """Return the kind of crash of a state and its cause, for `remedies`; "" for one that left a traceback."""
    if any(name in cause for name in NATIVE):
        return "native"
    if "SIGKILL" in cause:
        return "SIGKILL"
    if state in ("killed", "lost"):
        return "signal" if "SIG" in cause else "unseen"
    return "exit" if cause.startswith("exit code") else ""


SOURCE_ENDED = "source_ended"
"""Kind of the event with the end of a run that another tool records, by its follower: state, cause, certain."""
NOT_FOLLOWED = "lost", "stopped following it: the process that did was killed; the training may go on"


def end_of_source(event: Mapping[str, object] | None) -> tuple[str, str, bool]:
    """Return state, cause and certainty of a followed run by its event SOURCE_ENDED; None: there is none."""
    if event is None:
        return (*NOT_FOLLOWED, False)
    return str(event.get("state", "lost")), str(event.get("cause", "")), event.get("certain") is True


def exit_code(argument: object) -> int:
    """Return the exit code of `sys.exit` with this argument: anything but None and a whole number means 1."""
    if argument is None:
        return 0
    return argument & 0xFF if isinstance(argument, int) else 1


def end_of(error: BaseException | None) -> str:
    """Return how a program ended by this exception, as text; "finished" without one."""
    if isinstance(error, SystemExit):
        code = exit_code(error.code)
        return end_words("failed", f"exit code {code}") if code else "finished"
    return "finished" if error is None else end_words(*end_by_error(in_words(error, 200)))
