"""The verdict of a diagnosis in one or two sentences, made by a child process: it may need more memory than we have."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.spawn import SpawnError, arguments, interpreter

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 120.0
"""The longest that a diagnosis may take."""


def verdict_of(run: Path, note: Callable[[str], None], seconds: float = SECONDS) -> str:
    """Return what the diagnosis of a run says; empty, and noted, if it cannot be made."""
    try:
        found = subprocess.run(
            [interpreter(), *arguments(__name__, str(run))],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            timeout=seconds,
            check=True,
        )
        return str(json.loads(found.stdout))
    except (OSError, SpawnError, subprocess.SubprocessError, ValueError) as error:
        note(f"cannot make the diagnosis for the sinks: {type(error).__name__}; they get the run without it")
        return ""


def main(arguments: list[str]) -> int:
    """Print the verdict of the run in the folder that is given, as JSON."""
    from stepscope.sources.diagnosis import diagnose
    from stepscope.store.layout import RunFolder
    from stepscope.store.reader import Past
    from stepscope.watcher.sealing import lower_priority

    lower_priority(10)
    facts = diagnose(Past(RunFolder(Path(arguments[0]))))
    json.dump(str(facts.get("summary") or ""), sys.stdout)
    return 0
