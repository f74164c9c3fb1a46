"""Which addresses a message may go to (rule S19): looked at when it connects, whatever a name meant before."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_NEVER = tuple(
    map(
        ipaddress.ip_network,
        ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "100.100.100.200/32", "0.0.0.0/8", "::/128", "192.0.0.192/32"),
    )
)
"""Link-local addresses and those where clouds keep the credentials of a machine: refused whatever is allowed."""


class AddressError(OSError):
    """A name leads where no message may go."""


def refusal(address: str, *, private: bool) -> str:
    """Return why nothing may be sent to an IP address; empty if it may.

    Args:
        address: as the resolver gives it.
        private: whether addresses of this machine and of private networks are allowed.
    """
    try:
        found: Any = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "it is no address"
    inner = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    found = inner or found
    if any(found.version == network.version and found in network for network in _NEVER) or found.is_multicast:
        return "it is link-local, or where a cloud keeps credentials"
    if not private and not found.is_global:
        return "it is not public; set alerting.private_addresses: true to allow it"
    return ""


def guarded(resolve: Callable[..., list[Any]], *, private: bool) -> Callable[..., list[Any]]:
    """Return a `getaddrinfo` that raises AddressError for addresses where nothing may go.

    Whoever connects does so to what it returns, so a name that resolves anew in between changes nothing.
    """

    def look_up(host: Any, *arguments: Any, **named: Any) -> list[Any]:
        found = resolve(host, *arguments, **named)
        for entry in found:
            if entry[0] not in {socket.AF_INET, socket.AF_INET6}:
                continue
            why = refusal(str(entry[4][0]), private=private)
            if why:
                raise AddressError(f"{entry[4][0]} is refused: {why}")
        return found

    return look_up


def guard_this_process(*, private: bool) -> None:
    """Let this whole process connect only where messages may go; for the notifier, which does nothing else."""
    socket.getaddrinfo = guarded(socket.getaddrinfo, private=private)
