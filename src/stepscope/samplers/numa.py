"""Which NUMA node each CPU belongs to: memory of another node is slower, and programs on one node share its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.samplers.kernel import entries, find_text

if TYPE_CHECKING:
    from pathlib import Path

MOST_CPUS = 8192


def numa_nodes(root: Path) -> dict[int, int]:
    """Return the NUMA node of each CPU below `root`; empty if the machine has only one."""
    folder = f"{root}/sys/devices/system/node"
    names = [name for name in entries(folder) if name.startswith("node") and name[4:].isdecimal()]
    if len(names) < 2:
        return {}
    return {cpu: int(name[4:]) for name in names for cpu in cpus_of(find_text(f"{folder}/{name}/cpulist"))}


def cpus_of(text: str) -> list[int]:
    """Return the numbers in a kernel's list such as `0-3,8`; those that are no numbers are left out."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal() and int(last or first) < MOST_CPUS:
            found += range(int(first), int(last or first) + 1)
    return found
