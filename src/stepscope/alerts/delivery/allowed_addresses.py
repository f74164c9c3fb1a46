"""The addresses that a message may go to, checked when it connects: a name may resolve differently by then."""

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
    """A name leads where no message may go."""


def refusal(address: str, *, private: bool) -> str:
    """Return why nothing may be sent to an IP address; empty if it may.

    Args:
        address: as the resolver gives it.
        private: whether addresses of this machine and of private networks are allowed.
    """
    found = _unwrapped(address)
    if found is None:
        return "it is no address"
    if any(found.version == network.version and found in network for network in _NEVER) or found.is_multicast:
        return "it is link-local, or where a cloud keeps credentials"
    if not private and not found.is_global:
        return "it is on this machine or a private network, and alerting.channels does not name it"
    return ""


def _unwrapped(address: str) -> Any:
    try:
        found: Any = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None) or found


def hosts_of(channels: Iterable[Channel], environ: Mapping[str, str]) -> set[str]:
    """Return the hosts that channels name themselves, in small letters: of web addresses, mail servers, services."""
    found: set[str] = set()
    for channel in channels:
        with contextlib.suppress(UsageError, ValueError):  # an unusable address is reported when it is used
            parts = urlsplit(channel.address(environ).removeprefix("alertmanager+"))
            asked = parse_qs(parts.query)
            found |= {
                str(host).lower() for host in (parts.hostname, *asked.get("smtp", ()), *asked.get("host", ())) if host
            }
    return found


def guarded(
    resolve: Callable[..., list[Any]], *, private: bool = False, named: Collection[str] = ()
) -> Callable[..., list[Any]]:
    """Return a `getaddrinfo` that raises AddressError for addresses where nothing may go.

    The caller connects to the addresses that it returns, so a later change of the name has no effect.

    Args:
        resolve: resolves names.
        private: whether every name may lead to this machine and to private networks.
        named: hosts that may; not those that have led to a public address, or do so as well: that is no server of
            one's own, but a name that is made to lead elsewhere.
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
                why = "its name leads to public addresses as well, as nobody's own server does"
            if why:
                raise AddressError(f"{address} is refused: {why}")
        return found

    return look_up


def guard_this_process(settings: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> None:
    """Let this whole process connect only where messages may go; for the notifier, which does nothing else."""
    named = hosts_of(channels_of(settings)[0], environ)
    private = bool(settings.get("alerting.private_addresses"))
    socket.getaddrinfo = guarded(socket.getaddrinfo, private=private, named=named)
