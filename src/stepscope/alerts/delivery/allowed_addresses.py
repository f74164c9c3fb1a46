"""The addresses that messages may go to, checked on each connection: a name may resolve differently by then."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from stepscope.alerts.delivery.channel import Channel, channels_of
from stepscope.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

_NEVER = tuple(
    map(
        ipaddress.ip_network,
        ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "100.100.100.200/32", "0.0.0.0/8", "::/128", "192.0.0.192/32"),
    )
)
"""Link-local addresses and those where clouds keep a machine's credentials: always refused."""


class AddressError(OSError):
    """A name resolves to an address that messages may not go to."""


def refusal(address: str, *, private: bool) -> str:
    """Return why nothing may be sent to an IP address; empty if it may.

    `private` allows addresses of this machine and of private networks.
    """
    try:
        found: Any = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "it is no address"
    found = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None) or found
    if any(found.version == network.version and found in network for network in _NEVER) or found.is_multicast:
        return "it is link-local, or where a cloud keeps credentials"
    if not private and not found.is_global:
        return "it is on this machine or a private network, and alerting.channels does not name it"
    return ""


def hosts_of(channels: Iterable[Channel], environ: Mapping[str, str]) -> set[str]:
    """Return the hosts that channels name, in lower case: of web addresses, mail servers and services."""
    found: set[str] = set()
    for channel in channels:
        with contextlib.suppress(UsageError, ValueError):  # an unusable address is reported when it is used
            parts = urlsplit(channel.address(environ).removeprefix("alertmanager+"))
            asked = parse_qs(parts.query)
            hosts = (parts.hostname, *asked.get("smtp", ()), *asked.get("host", ()))
            found |= {str(host).lower() for host in hosts if host}
    return found


def guarded(
    resolve: Callable[..., list[Any]], *, private: bool = False, named: Collection[str] = ()
) -> Callable[..., list[Any]]:
    """Return a `getaddrinfo` that raises AddressError for addresses that nothing may be sent to.

    The caller connects to the returned addresses, so a later change of the name has no effect.

    Args:
        resolve: resolves names.
        private: whether every name may resolve to this machine and to private networks.
        named: hosts that may do so, unless they also resolve to a public address, now or before: such a name is not
            that of a private server, but was made to point to one.
    """
    public: set[str] = set()

    def look_up(host: Any, *arguments: Any, **named_arguments: Any) -> list[Any]:
        found = resolve(host, *arguments, **named_arguments)
        name = (host.decode("ascii", "replace") if isinstance(host, bytes) else str(host)).lower().strip("[]")
        addresses = [str(entry[4][0]) for entry in found if entry[0] in {socket.AF_INET, socket.AF_INET6}]
        if any(not refusal(address, private=False) for address in addresses):
            public.add(name)
        for address in addresses:
            why = refusal(address, private=private or (name in named and name not in public))
            if why and name in public and not refusal(address, private=True):
                why = "its name leads to public addresses as well, unlike that of a private server"
            if why:
                raise AddressError(f"{address} is refused: {why}")
        return found

    return look_up


def guard_this_process(settings: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> None:
    """Let this process connect only to allowed addresses; for the notifier, which does nothing else."""
    named = hosts_of(channels_of(settings)[0], environ)
    private = bool(settings.get("alerting.private_addresses"))
    socket.getaddrinfo = guarded(socket.getaddrinfo, private=private, named=named)
