"""Workers of a `DataLoader` that die: which, and why."""

from __future__ import annotations

import re
import signal
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from torch.utils.data._utils import signal_handling

from stepscope.core.errors import in_words

if TYPE_CHECKING:
    from stepscope.integrations.torch.patches import Patches
    from stepscope.session.run import Run

TOLD = re.compile(
    r"DataLoader worker \(pid (?P<pid>\d+)\) (?:is killed by signal: (?P<signal>[^.]+)|.*code (?P<code>\d+))"
)
"""The error that torch raises when a worker has died."""
DYING_SECONDS = 0.5
"""Maximum time between a broken pipe and the end of the worker."""


class WorkerDeaths:
    """The workers of the training's loader.

    A dead worker shows itself in several ways: through torch's own error, which a signal handler raises wherever the
    program happens to be, or through a broken pipe, which may precede the end of the process. So workers are checked
    whenever a loop over batches ends, and again at the end of the run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._workers: list[Any] = []
        self._heard: RuntimeError | None = None

    def attach(self, patches: Patches) -> None:
        """Listen to torch's signal handler."""
        patches.wrap(signal_handling, "_error_if_any_worker_fails", self._hearing)

    def _hearing(self, original: Any) -> Any:
        def check() -> None:
            try:
                original()
            except RuntimeError as error:
                self._heard = error
                raise

        return check

    def follow(self, iterator: Any) -> None:
        """Watch the workers of this iterator from now on."""
        self._workers = [worker for worker in getattr(iterator, "_workers", ()) if worker.pid]

    def look(self, error: BaseException | None = None) -> None:
        """Record the workers that have died; `error` is what ended the loop, if anything did."""
        workers, self._workers = self._workers, []
        error, self._heard = error or self._heard, None
        if workers and isinstance(error, (OSError, EOFError)):
            wait([worker.sentinel for worker in workers], DYING_SECONDS)
        codes = {str(worker.pid): worker.exitcode for worker in workers}
        # torch ends workers that do not stop by themselves with SIGTERM: that is not a crash.
        dead = {pid: code for pid, code in codes.items() if code and code != -signal.SIGTERM} or _told(error)
        if dead:
            said = in_words(error, 500) if error is not None else ""
            self._run.own_event("worker_died", workers=dead, error=said)


def _told(error: BaseException | None) -> dict[str, int]:
    """Return the content of torch's own error: all that is known of a worker that died before its iterator."""
    said = TOLD.match(str(error)) if isinstance(error, RuntimeError) else None
    if said is None:
        return {}
    codes = {signal.strsignal(number): -number for number in signal.valid_signals()}
    return {said["pid"]: int(said["code"] or codes.get(said["signal"], 0))}
