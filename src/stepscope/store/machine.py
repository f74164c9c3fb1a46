"""A watcher's description of its machine: the metrics it samples, and what it cannot sample and why.

Metric descriptions travel with the run, so that a reader of a copied folder knows the unit and meaning of names that
its own version does not know.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.core.vocabulary import Metric, matches
from stepscope.store.layout import RunFolder, Writer, replace

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SUFFIX = ".machine"
MOST_BYTES = 1 << 20
"""Maximum size read of such a file."""


@dataclass
class MachineDescription:
    """One node of a run, as its watcher described it."""

    node: str
    attempt: int
    metrics: tuple[Metric, ...] = ()
    absent: dict[str, str] = field(default_factory=dict)
    """What cannot be sampled there, with reason and remedy."""
    devices: dict[str, str] = field(default_factory=dict)
    """Names of its devices, by the prefix of their metrics: `gpu/0` is an `NVIDIA H100 80GB HBM3`."""

    def save(self, folder: RunFolder) -> None:
        """Write the description; raise OSError if that fails."""
        path = folder.node_file(Writer(self.node, self.attempt)).with_suffix(SUFFIX)
        replace(path, json.dumps(self.__dict__).encode())

    @classmethod
    def load(cls, path: Path) -> MachineDescription:
        """Read a description; raise ValueError if the file is not one."""
        with path.open("rb") as file:
            facts: Any = json.loads(file.read(MOST_BYTES))
        try:
            metrics = tuple(Metric(*map(str, row)) for row in facts["metrics"])
            absent = {str(what): str(why) for what, why in facts["absent"].items()}
            devices = {str(what): str(name) for what, name in facts.get("devices", {}).items()}
            return cls(str(facts["node"]), int(facts["attempt"]), metrics, absent, devices)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path.name} does not describe a machine") from error


def read_machines(folder: RunFolder) -> tuple[list[MachineDescription], list[str]]:
    """Return the machines of a run, and the problems of their descriptions."""
    machines, problems = [], []
    for path in sorted((folder.path / "nodes").glob(f"[!.]*{SUFFIX}")):
        try:
            machines.append(MachineDescription.load(path))
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{path.name}: {error}")
    return machines, problems


def declared(machines: Iterable[MachineDescription], name: str) -> Metric | None:
    """Return the description of a metric, by its name; None if no machine of the run has one."""
    found = (metric for machine in machines for metric in machine.metrics if matches(metric.name, name))
    return next(found, None)
