"""Check the branch coverage of each room: `python tools/check_coverage.py [REPORT]`.

REPORT is the output of `coverage json`; by default it is made from the data that `make check-coverage` has recorded.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sources import ROOT

FLOOR = 85.0
"""Percent of lines and branches that tests must run in every room."""
FLOORS = {
    "alerts/delivery": 95.0,
    "recorder": 95.0,
    "store": 95.0,
    "web guard": 95.0,
}
"""Rooms in which a fault loses rows or alerts, or lets a stranger in."""
PARTS = {
    "alerts/delivery/": "alerts/delivery",
    "web/guard.py": "web guard",
    "web/access_policy.py": "web guard",
    "core/access.py": "web guard",
}
"""Paths that are counted apart from the rest of their room, by prefix."""


@dataclass(slots=True)
class Coverage:
    """Lines and branches of a room: how many there are, and how many ran."""

    total: int = 0
    covered: int = 0

    @property
    def percent(self) -> float:
        """Return the covered share in percent; a room without code is covered."""
        return 100.0 * self.covered / self.total if self.total else 100.0


def room_of(path: str) -> str:
    """Return the room of a source file; its path is relative to the repository or absolute."""
    inside = path.replace("\\", "/").rpartition("src/stepscope/")[2]
    for prefix, room in PARTS.items():
        if inside.startswith(prefix):
            return room
    return inside.partition("/")[0] if "/" in inside else "stepscope"


def rooms(report: dict[str, Any]) -> dict[str, Coverage]:
    """Return the coverage of each room, from the parsed output of `coverage json`."""
    found: dict[str, Coverage] = defaultdict(Coverage)
    for path, file in report["files"].items():
        summary = file["summary"]
        room = found[room_of(path)]
        room.total += summary["num_statements"] + summary.get("num_branches", 0)
        room.covered += summary["covered_lines"] + summary.get("covered_branches", 0)
    return dict(found)


def read_report(path: Path | None) -> dict[str, Any]:
    """Return the parsed report; without a path it is made from the recorded data."""
    if path is None:
        with tempfile.TemporaryDirectory() as scratch:
            made = Path(scratch) / "coverage.json"
            command = [sys.executable, "-m", "coverage", "json", "--quiet", "-o", str(made)]
            subprocess.run(command, cwd=ROOT, check=True)
            return read_report(made)
    parsed: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return parsed


def main(argv: list[str]) -> int:
    """Print one line per room and return the exit code: 1 if one is below its floor."""
    found = rooms(read_report(Path(argv[0]) if argv else None))
    below = []
    for room in sorted(found):
        floor, percent = FLOORS.get(room, FLOOR), found[room].percent
        too_low = percent < floor
        print(f"{room:16} {percent:6.1f} %  floor {floor:.0f} %{'  TOO LOW' if too_low else ''}")
        if too_low:
            below.append(room)
    if below:
        message = "; `coverage report -m --include='src/stepscope/ROOM/*'` lists the lines that no test runs"
        print(f"below the floor: {', '.join(below)}{message}", file=sys.stderr)
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
