"""What the commands share: exit codes, options, and strict JSON output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from stepscope.cli.text.terminal import Paint, columns
from stepscope.core.strict_json import flagged

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

FINE, FAILED, USAGE, GATE = 0, 1, 2, 3
"""Exit codes."""
RUN = "folder of a run, its id or a unique prefix of it, project/id, its display name, or 'latest'"
"""The ways to name a run."""
ROOT = "folder of the runs (default: STEPSCOPE_DIR, store.dir of the configuration, or ./stepscope-runs)"


SHARED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "run": (("run",), {"metavar": "RUN", "help": RUN}),
    "dir": (("--dir",), {"metavar": "ROOT", "help": ROOT}),
    "quiet": (("--quiet", "-q"), {"action": "store_true", "help": "show no progress"}),
    "json": (("--json",), {"action": "store_true", "help": "print JSON"}),
    "output": (("--output", "-o"), {"metavar": "PATH", "help": "file to write (default: standard output)"}),
}
"""Arguments that several commands have, by a short name."""


def add_shared(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add some of the arguments that several commands have."""
    for name in names:
        flags, details = SHARED[name]
        parser.add_argument(*flags, **details)


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
