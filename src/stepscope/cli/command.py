"""The interface of a command, shared options, and strict JSON output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from stepscope.cli.text.terminal import Paint, columns
from stepscope.core.strict_json import flagged

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

FINE, FAILED, USAGE, GATE = 0, 1, 2, 3
"""Exit codes."""
RUN = "folder of a run, its id or a unique prefix of it, project/id, its display name, or 'latest'"
"""The ways to name a run."""


class Command(Protocol):
    """A command's module: its docstring is its help, and the first line is in the list of commands."""

    __doc__: str | None

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own options."""

    def run(self, options: argparse.Namespace) -> int | Callable[[], int]:
        """Run the command and return the exit code, or a function that returns it."""


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add `--dir ROOT`."""
    text = "folder of the runs (default: STEPSCOPE_DIR, store.dir of the configuration, or ./stepscope-runs)"
    parser.add_argument("--dir", metavar="ROOT", help=text)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the argument RUN."""
    parser.add_argument("run", metavar="RUN", help=RUN)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add `--output PATH`."""
    parser.add_argument("--output", "-o", metavar="PATH", help="file to write (default: standard output)")


def show(options: argparse.Namespace, facts: dict[str, Any], page: Callable[[int, Paint], Iterable[str]]) -> int:
    """Print facts as JSON with `--json`, else as the lines of a page of this width and paint; return the exit code."""
    if options.json:
        print_json(facts)
    else:
        print("\n".join(page(columns(), Paint.of())))
    return FINE


def print_json(facts: dict[str, Any]) -> None:
    """Print facts as strict JSON: see `json_text`."""
    print(json_text(facts))


def json_text(facts: dict[str, Any]) -> str:
    """Return facts as strict JSON.

    JSON has no NaN and no infinity: such a value is null, and "nonfinite" lists where (as RFC 6901 pointers) and which.
    """
    plain, flags = flagged(facts)
    return json.dumps({**plain, "nonfinite": flags}, indent=2, allow_nan=False)
