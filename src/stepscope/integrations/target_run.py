"""The run that a framework's callback records into: the current one, or one of its own."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from stepscope.core.identity import Distributed, Process, identify
from stepscope.session import current, opening

if TYPE_CHECKING:
    from stepscope.session.run import Run


def take_run(given: Run | None = None, **options: Any) -> tuple[Run, bool]:
    """Return the run to record into, and whether it was started here, so that the caller must finish it.

    That is the `given` run, else the current one of the process, else a new one with `options` of `stepscope.init`.
    """
    if given is not None:
        return given, False
    run = current.CURRENT.run
    if run.recording:
        return run, False
    run = opening.init(**options)
    return run, run.recording


def nameless_id(project: str | None) -> str | None:
    """Return a new run id, which the caller must send to the other ranks; None if every rank can find the id itself."""
    found = identify(
        os.environ,
        project=project or opening.DEFAULT_PROJECT,
        now=time.time(),
        token=os.urandom(2).hex(),
        parent=Process.current(),
        distributed=Distributed.current(),
    )
    return found.run_id if found.source == "new" and found.world_size > 1 else None
