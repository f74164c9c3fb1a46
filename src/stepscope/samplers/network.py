"""Network: bytes, errors and drops of interfaces, and of InfiniBand, whose traffic bypasses the kernel."""

from __future__ import annotations

import os
import re
from pathlib import Path

from stepscope.core.vocabulary import BY_NAME, counter, gauge
from stepscope.samplers.kernel import Growth, KernelFile, entries, find_number, number
from stepscope.samplers.sampler import Sampler

ERRORS_EVERY = 10_000_000_000
"""ns. Each InfiniBand error counter is a request to the adapter."""
ERRORS = ("symbol_error", "port_rcv_errors", "port_xmit_discards", "link_downed")
WORD = 4
"""Bytes. The unit of InfiniBand's data counters."""
ETHERNET = re.compile(r"eth\d+")

METRICS = (
    BY_NAME["network/received_bytes_per_second"],
    BY_NAME["network/sent_bytes_per_second"],
    gauge("network/errors_per_second", "Packets with receive or send errors per second.", "packets/second"),
    gauge("network/drops_per_second", "Packets dropped per second because buffers were full.", "packets/second"),
    gauge("network/infiniband_received_bytes_per_second", "Bytes received by InfiniBand or RoCE adapters per second."),
    gauge("network/infiniband_sent_bytes_per_second", "Bytes sent by InfiniBand or RoCE adapters per second."),
    counter(
        "network/infiniband_errors_total",
        "Symbol and receive errors, discards and lost links of InfiniBand adapters.",
        "errors",
    ),
)


def parse_net_dev(data: bytes) -> dict[str, tuple[int, ...]]:
    """Return for each interface of /proc/net/dev: bytes received, bytes sent, errors, drops (both directions)."""
    found: dict[str, tuple[int, ...]] = {}
    for line in data.splitlines()[2:]:
        name, colon, rest = line.rpartition(b":")  # an alias such as eth0:1 has a colon in its name
        words = rest.split()
        if colon and len(words) >= 12:
            counts = [number(words[at]) for at in (0, 8, 2, 10, 3, 11)]
            totals = (counts[0], counts[1], counts[2] + counts[3], counts[4] + counts[5])
            found[name.strip().decode("utf-8", "replace")] = totals
    return found


def counted_interfaces(names: list[str], root: Path = Path("/")) -> set[str]:
    """Return the interfaces where bytes enter or leave, so that none is counted twice.

    Bridges, bonds, tunnels and the host's ends of containers carry the same bytes as an adapter. Inside a container the
    interface is virtual and called eth0.
    """
    folder = f"{root}/sys/class/net"
    others = [name for name in names if name != "lo"]
    adapters = {name for name in others if os.path.exists(f"{folder}/{name}/device")}
    plain = {name for name in others if not _is_stacked(f"{folder}/{name}")}
    named = {name for name in plain if ETHERNET.fullmatch(name)}
    return adapters | named or plain


def _is_stacked(folder: str) -> bool:
    return any(name == "master" or name.startswith("lower_") for name in entries(folder))


class NetworkSampler(Sampler):
    """Read /proc/net/dev and the InfiniBand adapters below `root`."""

    name = "network"
    metrics = METRICS

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._devices = KernelFile(f"{root}/proc/net/dev")
        self._growth, self._port_growth = Growth(), Growth()
        self._names: list[str] = []
        self._counted: set[str] = set()
        self._ports = _ports(root)
        self._data = {
            port: (KernelFile(f"{port}/port_rcv_data"), KernelFile(f"{port}/port_xmit_data")) for port in self._ports
        }
        self._errors_due: int | None = None

    def sample(self, now: int) -> dict[str, float]:
        """Return rates since the last call; `now` is monotonic time in ns."""
        values = self._infiniband(now)
        try:
            interfaces = parse_net_dev(self._devices.read())
        except FileNotFoundError:
            return values
        names = list(interfaces)
        if names != self._names:
            self._names, self._counted = names, counted_interfaces(names, self._root)
        rates = self._growth.sums({name: interfaces[name] for name in self._counted}, now)
        kinds = ("received_bytes", "sent_bytes", "errors", "drops")
        return values | {f"network/{kind}_per_second": rate for kind, rate in zip(kinds, rates, strict=False)}

    def _infiniband(self, now: int) -> dict[str, float]:
        if not self._ports:
            return {}
        rows = {port: row for port, files in self._data.items() if (row := _words(files)) is not None}
        values = {}
        rates = self._port_growth.sums(rows, now)
        for kind, rate in zip(("received", "sent"), rates, strict=False):
            values[f"network/infiniband_{kind}_bytes_per_second"] = rate * WORD
        if self._errors_due is None or now >= self._errors_due:
            self._errors_due = now + ERRORS_EVERY
            counts = [find_number(f"{port}/{name}") for port in self._ports for name in ERRORS]
            known = [count for count in counts if count is not None]
            if known:
                values["network/infiniband_errors_total"] = float(sum(known))
        return values

    def absent(self) -> dict[str, str]:
        """Return what this machine does not have."""
        reasons = {}
        if not Path(self._devices.path).exists():
            reasons["network"] = "no /proc/net/dev; Linux has it"
        if not self._ports:
            reasons["network/infiniband_*"] = "no adapter in /sys/class/infiniband; none is needed on one node"
        return reasons


def _ports(root: Path) -> list[str]:
    folder = f"{root}/sys/class/infiniband"
    found = [
        f"{folder}/{adapter}/ports/{port}/counters"
        for adapter in entries(folder)
        for port in entries(f"{folder}/{adapter}/ports")
    ]
    return [path for path in found if os.path.isdir(path)]


def _words(files: tuple[KernelFile, KernelFile]) -> tuple[int, ...] | None:
    """Return both counters; None for a port that is down or an adapter that was reset."""
    received, sent = (file.find_number() for file in files)
    return None if received is None or sent is None else (received, sent)
