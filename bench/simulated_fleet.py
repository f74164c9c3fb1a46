"""512 ranks on 64 nodes that share one folder: nothing is lost, no file has two writers, no folder grows large.

Each node has a host name, a runtime folder, a watcher and a wall clock of its own; some are in network, pid and mount
namespaces, with a /dev/shm that nobody else sees. Their clocks differ by up to a minute. Needs root, and a C compiler.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import stepscope
from bench.figure import Figure, Options
from bench.processes import WATCHER, cpu_seconds, environment, find, wait_until
from bench.sandbox import settled
from bench.simulated_node import GO, MARK, PROJECT, READY, NodePlan, value_of
from stepscope.core.places import shared_root
from stepscope.sources.clocks import clock_offsets, true_events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.store.reader import Past

SOURCE = Path(__file__).with_name("simulated_node.c")
NAMED = ("unshare", "-u")
"""Starts a node with a host name of its own."""
APART = ("unshare", "-u", "-n", "-p", "-m", "--fork", "--kill-child", "--mount-proc")
"""Starts one that also has its own network, processes and mounts."""
OWN_MEMORY = 'mount -t tmpfs -o size=256m tmpfs /dev/shm && exec "$@"'
MARK_SECONDS = 0.02
"""Seconds between the events of two nodes, whose order must come out right."""
MOST_ENTRIES = 1000.0
"""Entries of a folder that a network file system lists quickly."""
CLOCK_ERROR = 0.05
"""Seconds by which the estimate of a clock may be wrong."""


@dataclass(frozen=True)
class FleetPlan:
    """What to simulate."""

    nodes: int = 64
    per_node: int = 8
    steps: int = 60
    seconds: float = 1.0
    """Seconds of a step."""
    apart: int = 2
    """Nodes in network, pid and mount namespaces of their own."""
    most_ahead: float = 30.0
    """Seconds by which a clock is ahead or behind at most."""
    seed: int = 22

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.nodes * self.per_node

    @property
    def late(self) -> int:
        """The rank that the others wait for."""
        return self.ranks * 2 // 3

    @property
    def hosts(self) -> list[str]:
        """The host names."""
        return [f"sim{number:03}" for number in range(self.nodes)]

    @cached_property
    def ahead(self) -> list[float]:
        """By how many seconds each clock is ahead: two of them by the most, in both directions."""
        found = [random.Random(self.seed + node).uniform(-1, 1) * self.most_ahead for node in range(self.nodes)]
        return [0.0, self.most_ahead, -self.most_ahead, *found[3:]][: self.nodes]

    @cached_property
    def marks(self) -> list[float]:
        """When each node writes its event, in seconds after the last step; not in the order of the nodes."""
        order = random.Random(self.seed).sample(range(self.nodes), self.nodes)
        return [0.1 + MARK_SECONDS * place for place in order]


@dataclass
class FleetReport:
    """What was found."""

    acknowledged: int = 0
    """Rows for which `log` returned."""
    missing: int = 0
    """Of these, rows that the reader does not have, or has more than once."""
    shared_files: list[str] = field(default_factory=list)
    """Files that two nodes have opened for writing."""
    largest: tuple[int, str] = (0, "")
    """Most entries of any folder of the run at any time, and which."""
    clock_error: float = 0.0
    """Most seconds between the planted and the estimated offset of a clock."""
    clock_sources: dict[str, str] = field(default_factory=dict)
    primary: str = ""
    named: int | None = None
    """The rank that the verdict names."""
    is_ordered: bool = False
    """Whether the events of all nodes come out in their true order."""
    state: str = ""
    problems: list[str] = field(default_factory=list)
    watcher_cpu: float = 0.0
    """Share of a core that all watchers take together while the job trains."""
    seconds: float = 0.0


def may_simulate() -> str:
    """Return why nodes cannot be simulated here; "" if they can."""
    if shutil.which("unshare") is None or shutil.which("cc") is None:
        return "needs the program unshare and a C compiler"
    probe = [*APART, "sh", "-c", OWN_MEMORY, "sh", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return "" if not done.returncode else f"needs the right to make namespaces: {done.stderr.strip()[:80]}"


class Fleet:
    """The nodes of one job, from their start to their end."""

    def __init__(self, folder: Path, plan: FleetPlan) -> None:
        """Prepare what the nodes need below a folder."""
        self.plan, self.folder = plan, folder
        self.run = folder / "shared" / PROJECT / "simulated"
        self._meeting, self._notes = folder / "meeting", folder / "notes"
        for path in (self._meeting, self._notes, self.run.parents[1]):
            path.mkdir(parents=True)
        self._library = folder / "simulated_node.so"
        build = ["cc", "-shared", "-fPIC", "-O1", "-o", str(self._library), str(SOURCE), "-ldl"]
        subprocess.run(build, check=True, capture_output=True)
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._largest = (0, "")
        self._spent: dict[int, float] = {}

    def play(self) -> FleetReport:
        """Let the job run to its end; return what is found afterwards."""
        try:
            self.start()
            began = self.begin()
            acknowledged = self.finish()
            taken = time.monotonic() - began
            settled(self.run)
            found = self.report()
        finally:
            self.close()
        found.acknowledged, found.seconds = acknowledged, taken
        found.missing = max(found.missing, self.plan.ranks * self.plan.steps - acknowledged)
        found.largest, found.watcher_cpu = self._largest, sum(self._spent.values()) / taken
        return found

    def start(self) -> None:
        """Start all nodes."""
        plan = self.plan
        for node, host in enumerate(plan.hosts):
            ranks = tuple(range(node * plan.per_node, (node + 1) * plan.per_node))
            own = NodePlan(
                host,
                ranks,
                plan.ranks,
                plan.late,
                plan.steps,
                plan.seconds,
                str(self._meeting),
                self.run.name,
                plan.marks[node],
            )
            words = [sys.executable, "-m", "bench.simulated_node", own.encode()]
            command = [*APART, "sh", "-c", OWN_MEMORY, "sh", *words] if node < plan.apart else [*NAMED, *words]
            env = environment(**self._environment(node))
            self._nodes.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE))

    def _environment(self, node: int) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "NODE_AHEAD_NS": str(round(self.plan.ahead[node] * 1e9)),
            "NODE_BELOW": f"{self.run}/",
            "NODE_NOTES": str(self._notes / self.plan.hosts[node]),
            "STEPSCOPE_DIR": str(self.run.parents[1]),
            "STEPSCOPE_RUNTIME_DIR": str(self._runtime(node)),
        }

    def _runtime(self, node: int) -> Path:
        return self.folder / f"runtime-{node}"

    def begin(self) -> float:
        """Begin when every node is ready and every watcher has said its first word; return when, monotonic."""
        nodes = self.plan.nodes

        def is_ready() -> bool:
            ready = len(list(self._meeting.glob(f"*{READY}"))) == nodes
            return ready and len(list(self.run.glob("nodes/[!.]*.json"))) == nodes

        if not wait_until(is_ready, 20.0 + 3.0 * nodes, 0.1):
            came, heard = len(list(self._meeting.glob("*"))), len(list(self.run.glob("nodes/[!.]*.json")))
            raise RuntimeError(f"only {came} nodes and {heard} watchers of {nodes} came")
        begin = time.monotonic() + 1.0
        draft = self._meeting / "draft"
        draft.write_text(str(begin), encoding="ascii")
        draft.rename(self._meeting / GO)
        return begin

    def finish(self) -> int:
        """Watch the run until its nodes have ended; return the rows that the nodes say were acknowledged."""
        before: dict[int, float] = {}
        while any(node.poll() is None for node in self._nodes):
            for folder, below, files in os.walk(self.run):
                entries = len(files) + len(below)
                self._largest = max(self._largest, (entries, os.path.relpath(folder, self.run)))
            for pid in find(WATCHER, self.run):
                spent = cpu_seconds(pid)[0]
                self._spent[pid] = max(self._spent.get(pid, 0.0), spent - before.setdefault(pid, spent))
            time.sleep(0.5)
        acknowledged = 0
        for node in self._nodes:
            assert node.stdout is not None
            for line in node.stdout.read().decode().splitlines():
                acknowledged += int(json.loads(line)["acknowledged"])
        return acknowledged

    def cut_off(self, node: int) -> None:
        """Kill everything on a node that is apart, as when its power fails."""
        self._nodes[node].kill()

    def report(self) -> FleetReport:
        """Read the run, from here, with a clock that is right."""
        past = stepscope.open(self.run)
        found = FleetReport(missing=missing(past, self.plan), state=past.state, problems=past.problems())
        found.shared_files = shared_files(self._notes)
        offsets = {node.partition(".")[0]: offset for node, offset in clock_offsets(past).items()}
        planted = dict(zip(self.plan.hosts, self.plan.ahead, strict=True))
        errors = [abs(offsets[host].seconds - planted[host]) if host in offsets else 1e9 for host in planted]
        found.clock_error = max(errors)
        found.clock_sources = {host: offset.source for host, offset in offsets.items()}
        verdict = past.diagnose()
        found.primary = verdict["primary"]
        found.named = verdict["findings"][0]["rank"] if verdict["findings"] else None
        true = [host for _, host in sorted(zip(self.plan.marks, self.plan.hosts, strict=True))]
        found.is_ordered = [event["host"] for event in true_events(past) if event["kind"] == MARK] == true
        return found

    def close(self) -> None:
        """End what still runs, and remove the rings."""
        for node in self._nodes:
            if node.poll() is None:
                node.kill()
            node.wait()
            if node.stdout is not None:
                node.stdout.close()
        for number in range(self.plan.nodes):
            shutil.rmtree(shared_root(str(self._runtime(number))), ignore_errors=True)


def shared_files(notes: Path) -> list[str]:
    """Return the files that several nodes wrote; `notes` has a file for each node with the paths that it wrote."""
    writers: dict[str, set[str]] = defaultdict(set)
    for path in notes.iterdir():
        for line in path.read_text(encoding="utf-8").splitlines():
            writers[line].add(path.name)
    if not writers:
        raise RuntimeError("the nodes' library did not note which files they write")
    return sorted(path for path, hosts in writers.items() if len(hosts) > 1)


def missing(past: Past, plan: FleetPlan) -> int:
    """Return how many of the planned rows are not there exactly once, with their value."""
    series = past.series("value")
    lacking = 0
    for rank in range(plan.ranks):
        own = series.rank == rank
        expected = np.array([value_of(rank, step) for step in range(plan.steps)])
        held = series.value[own]
        if not (len(held) == plan.steps and (held == expected).all() and (series.step[own] == range(plan.steps)).all()):
            lacking += max(1, plan.steps - len(np.intersect1d(held, expected)))
    return lacking


def measure(options: Options) -> list[Figure]:
    """Return the figures of a simulated fleet."""
    why = may_simulate()
    if why:
        return [Figure("fleet_missing", "rows missing", None, "", 0, why)]
    plan = FleetPlan(nodes=8, per_node=4, steps=30, seconds=0.5) if options.quick else FleetPlan()
    return figures(plan, Fleet(options.scratch / "fleet", plan).play())


def figures(plan: FleetPlan, found: FleetReport) -> list[Figure]:
    """Return a report as figures."""
    share = found.watcher_cpu * 100
    sources = ", ".join(
        f"{sum(one == source for one in found.clock_sources.values())} by {source}"
        for source in _sources(found.clock_sources)
    )
    is_right = found.primary == "straggler" and found.named == plan.late and found.is_ordered
    spread = max(plan.ahead) - min(plan.ahead)
    beside = (
        f"{plan.ranks} ranks on {plan.nodes} nodes, {plan.apart} of them apart, {found.state}, {found.seconds:.0f} s"
    )
    verdict = f"{found.primary} of rank {found.named}; events {'in' if found.is_ordered else 'out of'} order"
    return [
        Figure("fleet_acknowledged", "rows acknowledged", found.acknowledged, "", None, beside),
        Figure("fleet_missing", "  of them missing or doubled", found.missing, "", 0, ", ".join(found.problems)[:80]),
        Figure(
            "fleet_shared_files",
            "files with two writers",
            len(found.shared_files),
            "",
            0,
            ", ".join(found.shared_files)[:80],
        ),
        Figure("fleet_entries", "entries of the largest folder", found.largest[0], "", MOST_ENTRIES, found.largest[1]),
        Figure(
            "fleet_clock_error",
            f"wrong about clocks {spread:.0f} s apart",
            found.clock_error * 1000,
            "ms",
            CLOCK_ERROR * 1000,
            sources,
        ),
        Figure("fleet_wrong_verdict", "verdict or order wrong", float(not is_right), "", 0, verdict),
        Figure(
            "fleet_watcher_cpu",
            "CPU of one watcher",
            share / plan.nodes,
            "% of a core",
            None,
            f"{share:.0f} % together",
        ),
    ]


def _sources(sources: dict[str, Any]) -> Sequence[str]:
    return sorted(set(sources.values()))
