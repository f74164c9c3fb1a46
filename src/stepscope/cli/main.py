"""The program `stepscope`: run one command, and turn errors into a message and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys

from stepscope.cli.command import FAILED, USAGE
from stepscope.cli.parser import COMMANDS, build_parser
from stepscope.core.environment import ours
from stepscope.core.errors import StepscopeError
from stepscope.core.terminal_text import plain_lines

INTERRUPTED, BROKEN_PIPE = 130, 141
"""Exit codes as a shell gives them for SIGINT and SIGPIPE."""

TELL_THEMSELVES = ("run", "doctor", "completion")
"""Commands that report configuration errors themselves, or whose output is read by a program."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; wrong arguments end the program with 2, as argparse does."""
    words = sys.argv[1:] if arguments is None else arguments
    chosen = next((word for word in words if not word.startswith("-")), None)
    if chosen != "run":  # whose output is the script's own
        _never_fail_to_encode()
    parser = build_parser([chosen] if chosen in COMMANDS else COMMANDS)
    parser.chosen = str(chosen) if chosen in COMMANDS else ""
    options = parser.parse_args(words)
    if options.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    if options.command not in TELL_THEMSELVES:
        _check_variables()
    try:
        code = options.run_command(options)
        print(end="", flush=True)  # there may be no standard output
    except StepscopeError as error:
        return _report(str(error), error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _no_reader()
    except OSError as error:
        return _report(f"cannot finish {options.command}: {error}; make that accessible, or give another --dir", FAILED)
    return int(code() if callable(code) else code)  # a script's errors are its own: it runs outside of all this


def _check_variables() -> None:
    """Warn about STEPSCOPE_ variables that have no effect."""
    wrong = ours(os.environ)
    if wrong:
        from stepscope.core.config import load_or_default  # most people set none

        for notice in load_or_default(environ={name: os.environ[name] for name in wrong}).notices:
            _report(notice, FAILED)


def _report(message: str, code: int) -> int:
    print(f"stepscope: {plain_lines(message)}", file=sys.stderr)
    return code


def _no_reader() -> int:
    """Discard buffered output: the flush at exit would fail otherwise."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _never_fail_to_encode() -> None:
    """Print a question mark for characters that the terminal cannot show."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
