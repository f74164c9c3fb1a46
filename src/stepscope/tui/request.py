"""Requests of the dashboard to the process that reads a run, and its answers."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "stepscope.tui.reading"
SECONDS = 120.0
"""Longest time that reading may take, in seconds."""


class PastRequest(TypedDict):
    """A request for past data."""

    names: list[str]
    """Metrics to read; empty: those that are shown first."""
    everything: bool
    """Whether to read recent steps and the machine too."""
    diagnosis: bool


def request(names: list[str] | None = None, *, everything: bool = False, diagnosis: bool = False) -> PastRequest:
    """Return a request."""
    return {"names": names or [], "everything": everything, "diagnosis": diagnosis}


def command(path: Path, asked: PastRequest) -> list[str]:
    """Return the command that answers; never `-m`, because files of the working directory could shadow our modules."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = f"import sys; sys.path.insert(0, {root!r}); from {MODULE} import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", "-c", code, str(path), json.dumps(asked)]


def environment() -> dict[str, str]:
    """Return the environment of the reading process: one thread is enough."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def opened(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return facts and columns of an answer."""
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        columns = {key: archive[key] for key in archive.files if key != "facts"}
        return json.loads(archive["facts"].tobytes()), columns
