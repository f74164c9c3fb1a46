"""The feeds of the dashboard: what each has, and the feed of this machine, without a run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from stepscope.views.terminal import TerminalNode, TerminalScene

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from stepscope.tui.reading import PastRequest


class SceneSample(Protocol):
    """One sample of a machine."""

    @property
    def values(self) -> Mapping[str, float]:
        """By canonical name, in base units."""

    @property
    def events(self) -> Sequence[Mapping[str, object]]:
        """Events since the previous sample."""


class SampledMachine(Protocol):
    """A machine to sample: `watcher.machine.LocalMachine`."""

    def look(self) -> SceneSample:
        """Sample all sources."""

    def absent(self) -> dict[str, str]:
        """Return the values that are missing, with the reasons."""

    def close(self) -> None:
        """Stop the processes of the samplers."""


class SceneFeed:
    """The source of the dashboard: a run, or this machine, which has no stored past."""

    scene: TerminalScene
    path: Path | None = None
    """The folder of the run."""

    def poll(self) -> None:
        """Read new data."""

    def reset(self) -> None:
        """Clear the graphs."""

    def close(self) -> None:
        """Close files and processes."""

    def wanted(self) -> PastRequest | None:
        """Return the pending request for past data once; None if there is none."""
        return None

    def answered(self, facts: dict[str, Any], columns: dict[str, Any]) -> None:
        """Add past data."""

    def failed(self, why: str) -> None:
        """Report that the past cannot be read."""

    def show(self, names: list[str]) -> None:
        """Choose the graphs."""

    def known(self) -> Iterable[tuple[str, str]]:
        """Return the metrics that can have a graph, each with its source."""
        return ()

    def ask_diagnosis(self) -> None:
        """Request a diagnosis."""

    def follow_console(self, rank: int | None) -> None:
        """Read new lines of the console of a rank, or of all; called at each refresh while they are shown."""


class MachineFeed(SceneFeed):
    """A machine on the dashboard; `scene` is the data to draw."""

    def __init__(
        self, machine: SampledMachine, host: str, note: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        """Take the first sample; rates come with the second."""
        self._machine, self._clock = machine, clock
        self.scene = TerminalScene(host, is_run=False, note=note)
        self.scene.nodes[-1] = TerminalNode(host)
        self.poll()

    def close(self) -> None:
        """Stop the processes of the samplers."""
        self._machine.close()

    def reset(self) -> None:
        """Forget the past of every graph."""
        self.scene.nodes[-1].reset()

    def poll(self) -> None:
        """Sample the machine."""
        moment = self._machine.look()
        self.scene.now = self._clock()
        node = self.scene.nodes[-1]
        for name in node.values.keys() - moment.values.keys():
            del node.values[name]
        node.take(moment.values)
        node.absent = self._machine.absent()
        for event in moment.events:
            kind = str(event.get("kind", "event"))
            text = ", ".join(f"{key} {value}" for key, value in event.items() if key != "kind")
            self.scene.events.append({"time": self.scene.now, "kind": kind, "step": None, "text": text})
        del self.scene.events[:-200]
