"""Whose process is at the other end of a loopback connection: on a shared machine every user reaches every port.

The kernel lists the owner of each socket in /proc/net/tcp. A connection of another user is refused, root's is not;
where nothing can be told (no /proc, a connection that is gone) nobody is refused.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

KEPT = 4096
"""Connections whose owner is remembered."""
TABLES = {socket.AF_INET: "tcp", socket.AF_INET6: "tcp6"}


class Peers:
    """The owners of the connections to one server."""

    def __init__(self, port: int, proc: Path | None = None, user: int | None = None) -> None:
        """Judge the clients of a loopback port.

        Args:
            port: that the server listens on.
            proc: the folder /proc/net.
            user: who may ask, beside root; by default whoever runs this.
        """
        self._port = port
        self._proc = proc
        self._user = os.getuid() if user is None else user
        self._known: OrderedDict[tuple[str, int], bool] = OrderedDict()

    def may_ask(self, client: tuple[str, int] | None) -> bool:
        """Say whether a client, given by address and port, is answered."""
        if client is None:
            return True
        key = (client[0], client[1])
        if key not in self._known:
            owner = self._owner(*key)
            self._known[key] = owner in {None, 0, self._user}
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return self._known[key]

    def forget(self, client: tuple[str, int] | None) -> None:
        """Judge anew: another process may have the port now."""
        if client is not None:
            self._known.pop((client[0], client[1]), None)

    def _owner(self, address: str, port: int) -> int | None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        wanted = f"{_hexadecimal(family, address)}:{port:04X}"
        folder = "/proc/net" if self._proc is None else os.fspath(self._proc)
        try:
            with open(f"{folder}/{TABLES[family]}", encoding="ascii") as file:
                for line in file:
                    fields = line.split(maxsplit=8)
                    if len(fields) > 7 and fields[1] == wanted and fields[2].endswith(f":{self._port:04X}"):
                        return int(fields[7])
        except (OSError, ValueError):
            return None
        return None


def _hexadecimal(family: socket.AddressFamily, address: str) -> str:
    """Return an address as the kernel writes it: words in the order of this machine."""
    try:
        packed = socket.inet_pton(family, address.partition("%")[0])
    except OSError:
        return ""
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed))
