"""A place for runs, rings and homes that nothing of the user's leaks into, and that leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.processes import SEALER, SENDER, WATCHER, find, kill, wait_until
from stepscope.core.places import shared_root
from stepscope.recorder.native import PURE

if TYPE_CHECKING:
    from collections.abc import Iterator

FOREIGN = ("STEPSCOPE_", "SLURM_", "TORCHELASTIC_", "WANDB_", "MLFLOW_", "TRACKIO_")


@contextlib.contextmanager
def sandbox() -> Iterator[Path]:
    """Give a folder, and point this process and its children at it until the end."""
    before = dict(os.environ)
    folder = Path(tempfile.mkdtemp(prefix="stepscope-bench-"))
    runtime = folder / "runtime"
    for name in list(os.environ):
        if name.startswith(FOREIGN) and name != PURE:  # which chooses what is measured
            del os.environ[name]
    (folder / "home").mkdir()
    changes = {"STEPSCOPE_RUNTIME_DIR": runtime, "STEPSCOPE_DIR": folder / "runs", "HOME": folder / "home"}
    os.environ.update({key: str(value) for key, value in changes.items()})
    try:
        yield folder
    finally:
        os.environ.clear()
        os.environ.update(before)
        _clear(folder)
        shutil.rmtree(shared_root(str(runtime)), ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def _clear(folder: Path) -> None:
    """Let the watchers of these runs end; end those that do not."""
    wait_until(lambda: not find(WATCHER, folder), 20.0, 0.1)
    for pid in [*find(WATCHER, folder), *find(SEALER, folder), *find(SENDER, folder)]:
        kill(pid)


def settled(run: Path, seconds: float = 60.0) -> bool:
    """Wait until nobody writes a run any more."""
    return wait_until(lambda: not find(WATCHER, run) and not find(SEALER, run), seconds, 0.1)
