"""The program `stepscope`: choose a command, run it, turn what goes wrong into a message and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, cast

from stepscope.cli.command import FAILED, USAGE
from stepscope.cli.text import plain_lines
from stepscope.core.errors import StepscopeError
from stepscope.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.cli.command import Command

COMMANDS: tuple[str, ...] = (
    "demo",
    "run",
    "monitor",
    "top",
    "serve",
    "profile",
    "trace",
    "runs",
    "show",
    "diagnose",
    "compare",
    "baseline",
    "report",
    "ledger",
    "alerts",
    "sql",
    "export",
    "import",
    "gc",
    "doctor",
)
MODULES = {"import": "imports"}
"""Commands whose module cannot have their name."""
INTERRUPTED, BROKEN_PIPE = 130, 141
"""Exit codes as a shell gives them for SIGINT and SIGPIPE."""

DESCRIPTION = "Watch machine-learning training: what every step does and costs, and why a run is slow or going wrong."
EPILOG = """\
RUN is the folder of a run, its id, a unique start of its id, or 'latest'.
Exit codes: 0 fine, 1 failed, 2 wrong usage, 3 a gate was not passed."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; wrong arguments end the program with 2, as argparse does."""
    words = sys.argv[1:] if arguments is None else arguments
    chosen = next((word for word in words if not word.startswith("-")), None)
    if chosen != "run":  # whose output is the script's own
        _never_fail_to_encode()
    parser = build_parser([chosen] if chosen in COMMANDS else COMMANDS)
    options = parser.parse_args(words)
    if options.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    try:
        code = options.run_command(options)
        sys.stdout.flush()
    except StepscopeError as error:
        return _complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _nobody_reads()
    except OSError as error:
        return _complain(
            f"cannot finish {options.command}: {error}; make that accessible, or give another --dir", FAILED
        )
    return int(code() if callable(code) else code)  # a script's errors are its own: it runs outside of all this


def build_parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser with the commands of these names; one whose module does not exist is left out."""
    parser = argparse.ArgumentParser(
        "stepscope", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"stepscope {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name in names:
        place = f"stepscope.cli.{MODULES.get(name, name)}"
        if importlib.util.find_spec(place) is None:
            continue
        module = cast("Command", importlib.import_module(place))
        text = (module.__doc__ or "").strip()
        own = commands.add_parser(
            name,
            help=text.partition("\n")[0].rstrip("."),
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.prepare(own)
        own.set_defaults(run_command=module.run)
    return parser


def _complain(message: str, code: int) -> int:
    print(f"stepscope: {plain_lines(message)}", file=sys.stderr)
    return code


def _nobody_reads() -> int:
    """Let what is still buffered go nowhere: else the flush at exit would complain."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _never_fail_to_encode() -> None:
    """Let a terminal that cannot show a character show a question mark."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
