"""The machine around a training, looked at from a thread by the same sources as the watcher's."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.watcher.machine import Machine, local_samplers

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.samplers.sampler import Sampler
    from stepscope.watcher.machine import Moment

JOIN_SECONDS = 2.0
"""How long the end waits for the thread: it may be writing."""
GPU_SOURCES = {"nvidia", "amd", "other_gpus"}
IO_SOURCES = {"disk", "network"}


def chosen_sources(*, gpu: bool, cpu: bool, io: bool, rank: int = 0) -> list[Sampler]:
    """Return the sources that are wanted: of GPUs, of processors, memory and this process, of disks and network."""
    from stepscope.samplers.process import ProcessSampler

    everything: list[Sampler] = [*local_samplers(), ProcessSampler(lambda: {rank: os.getpid()}, Path("/"), own=0)]
    wanted = {**dict.fromkeys(GPU_SOURCES, gpu), **dict.fromkeys(IO_SOURCES, io)}
    return [source for source in everything if wanted.get(source.name, cpu)]


class MachineSamples:
    """A daemon thread that looks at the machine every so many seconds. `latest` is replaced as a whole."""

    def __init__(
        self,
        make: Callable[[], Machine],
        on_moment: Callable[[Moment], None],
        on_end: Callable[[], None],
        on_error: Callable[[Exception], None],
        interval: float = 1.0,
    ) -> None:
        """Prepare; nothing starts.

        Args:
            make: returns the machine; called in the thread.
            on_moment: told of every moment, in the thread.
            on_end: called in the thread when it ends.
            on_error: told what failed, in the thread, which goes on.
            interval: seconds.
        """
        self.latest: Moment | None = None
        self.looks = 0
        """How often the machine was looked at; rates need two."""
        self._make, self._on_moment, self._on_end, self._on_error = make, on_moment, on_end, on_error
        self._interval, self._stop = interval, threading.Event()
        self._thread = threading.Thread(target=self._look, name="stepscope-resources", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, at most two seconds later."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)

    def _look(self) -> None:
        try:
            machine = self._make()
        except Exception as error:  # noqa: BLE001 - a source that cannot be made must not end in a traceback; it is told
            self._on_error(error)
            return
        try:
            while True:
                self._once(machine)
                if self._stop.wait(self._interval):
                    return
        finally:
            self._on_end()
            machine.close()

    def _once(self, machine: Machine) -> None:
        try:
            moment = machine.look()
            self._on_moment(moment)
            self.latest = moment
            self.looks += 1
        except Exception as error:  # noqa: BLE001 - one bad look must not end the others; it is told
            self._on_error(error)
