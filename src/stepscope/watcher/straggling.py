"""What the straggler alert knows beyond the rows of its own node: its ranks' machines, and the ranks of other nodes.

Every watcher puts the timing of its ranks, a few numbers each, into its node's file with the heartbeat. The watcher of
the late rank finds it there, by comparing with the files of all other nodes, and raises the alert.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from stepscope.store.layout import Writer
from stepscope.store.states import NodeState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from stepscope.analysis.stragglers.pace import StepTiming
    from stepscope.store.layout import RunFolder
    from stepscope.store.states import RankState

READ_EVERY = 10.0
"""Seconds between two reads of the files of other nodes."""
STALE = 30.0
"""Seconds without a heartbeat after which a node is not compared with."""
MOST_NODES = 1024
"""Files of other nodes that are read."""
FRESH = 0.1
"""Weight of the newest sample in the mean of a machine's values: about the last ten samples count."""
PROCESS_FACTS = ("run_wait_ratio", "cpu_ratio", "numa_node")
CPU_CLOCK = "cpu/frequency_hertz"
GPU_FACTS = {
    "sm_clock_hertz": "gpu_clock_hertz",
    "temperature_celsius": "gpu_celsius",
    "throttle_hw_thermal": "gpu_hot_ratio",
    "throttle_sw_thermal": "gpu_hot_ratio",
    "throttle_hw_slowdown": "gpu_braked_ratio",
    "throttle_power_brake": "gpu_braked_ratio",
}
_GPU = re.compile(r"gpu/(\d+)/utilization_ratio")


class MachineFacts:
    """The recent values of the machine for each rank, as a running mean."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._known: dict[int, dict[str, float]] = {}
        self._places: dict[int, dict[str, Any]] = {}

    def place(self, rank: int, event: Mapping[str, Any]) -> None:
        """Note where an event says that a rank is in its job."""
        given = event.get("coordinates")
        if isinstance(given, dict):
            self._places.setdefault(rank, {}).update(given)

    def add(self, latest: Mapping[str, float], ranks: Iterable[int]) -> Mapping[int, Mapping[str, float]]:
        """Add the newest samples, and return the facts of each rank of this node."""
        from stepscope.analysis.stragglers.group import place_facts  # the watcher of a single rank never needs it

        numbers = sorted(ranks)
        gpus = sorted(int(match[1]) for name in latest if (match := _GPU.fullmatch(name)))
        found: dict[int, dict[str, float]] = {}
        for at, rank in enumerate(numbers):
            names = {fact: f"process/{rank}/{fact}" for fact in PROCESS_FACTS}
            now = {fact: latest[name] for fact, name in names.items() if name in latest}
            if CPU_CLOCK in latest:
                now["cpu_clock_hertz"] = latest[CPU_CLOCK]
            if len(gpus) == len(numbers):  # launchers give the ranks of a node its GPUs in order
                for name, fact in GPU_FACTS.items():
                    value = latest.get(f"gpu/{gpus[at]}/{name}")
                    if value is not None:
                        now[fact] = max(value, now.get(fact, value))
            before = self._known.get(rank, now)
            found[rank] = {name: value + (1 - FRESH) * (before.get(name, value) - value) for name, value in now.items()}
        self._known = found
        return {rank: {**facts, **place_facts(self._places.get(rank))} for rank, facts in found.items()}


class OtherNodes:
    """The timing of the ranks of all other nodes, from their files."""

    def __init__(self, folder: RunFolder, node: str) -> None:
        """Read nothing yet; `node` is this one."""
        self._folder, self._node = folder, node
        self._due = 0.0
        self._found: list[StepTiming] = []
        self.problems: list[str] = []
        """Files that could not be read in the last reading, with the reason."""

    def timings(self, attempt: int, now: float) -> list[StepTiming]:
        """Return the timings of an attempt, at most 10 s old; `now` is monotonic, in seconds."""
        if now >= self._due:
            self._due = now + READ_EVERY
            self._found, self.problems = [], []
            for path in self._files(attempt):
                try:
                    self._found += _timings_in(path)
                except FileNotFoundError:  # it was removed meanwhile
                    continue
                except (OSError, ValueError, TypeError, RecursionError) as error:
                    self.problems.append(f"cannot read {path.name}: {error}; its ranks are not compared")
        return self._found

    def _files(self, attempt: int) -> list[Path]:
        own = self._folder.node_file(Writer(self._node, attempt)).name
        found = sorted((self._folder.path / "nodes").glob(f"[!.]*-{attempt}.json"))
        return [path for path in found if path.name != own][:MOST_NODES]


def _timings_in(path: Path) -> list[StepTiming]:
    from stepscope.analysis.stragglers.pace import StepTiming

    node = NodeState.load(path)
    if node.ended or node.silent_seconds(path) > STALE:
        return []
    found = (StepTiming.of(state.pace) for state in node.ranks.values() if state.state == "running" and state.pace)
    return [timing for timing in found if timing is not None]


def note_timings(states: Mapping[int, RankState], timings: Iterable[StepTiming]) -> None:
    """Put the timings of this node's ranks into their states."""
    for timing in timings:
        state = states.get(timing.rank)
        if state is not None:
            state.own_seconds, state.usual_seconds = timing.own_seconds, timing.seconds
            state.pace = timing.as_dict()
