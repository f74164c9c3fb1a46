"""Find and read saved baselines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.store.catalog import runs_root

if TYPE_CHECKING:
    import os

    from stepscope.analysis.compare.recording import Group

BASELINES = ".baselines"
"""Folder below the runs' root that holds saved baselines."""
SUFFIX = ".json"
NAME = re.compile(r"\w[\w.+-]{0,99}")
MOST_BYTES = 256 * 2**20
"""Size of the largest baseline that is read, in bytes."""


def baseline_path(name: str, root: str | os.PathLike[str] | None = None) -> Path:
    """Return where a baseline of that name is saved. Raises UsageError if it is not a valid file name."""
    if not NAME.fullmatch(name):
        raise UsageError(f"name a baseline {name!r}", "letters, digits, - _ . + are allowed", "choose another name")
    return runs_root(root) / BASELINES / f"{name}{SUFFIX}"


def find_baseline(text: str, root: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the file of a baseline, by its path or its name; None if there is no such baseline."""
    path = Path(text)
    if path.suffix == SUFFIX and path.is_file():
        from stepscope.analysis.compare.baseline import FORMAT  # loads numpy

        with path.open("rb") as file:
            return path if f'"{FORMAT}"'.encode() in file.read(200) else None
    if NAME.fullmatch(text) and not path.exists():
        saved = baseline_path(text, root)
        return saved if saved.is_file() else None
    return None


def read_baseline(path: Path) -> Group:
    """Return the runs of a saved baseline. Raises StepscopeError if it cannot be read."""
    from stepscope.analysis.compare import baseline

    what = f"read baseline {path}"
    try:
        if path.stat().st_size > MOST_BYTES:
            raise StepscopeError(what, f"it is larger than {MOST_BYTES >> 20} MiB", "save it again with fewer runs")
        return baseline.from_facts(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise StepscopeError(what, error, "save it again: stepscope baseline save NAME RUN …") from error
