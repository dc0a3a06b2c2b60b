"""Finds the network interface of the route to another host, for the processes on this machine."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import psutil

from rlhf.errors import PlacementError

LOOPBACK = "127.0.0.1"
GLOO_VARIABLE, NCCL_VARIABLE = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
ELSEWHERE = "192.0.2.1"
"""An address reserved for documentation (RFC 5737), so the route to it is the default route."""
ANY_PORT = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface, and this machine's address on it."""

    name: str
    address: str


def interface_toward(host: str) -> Interface:
    """Return the interface of the route to `host`. Raises `PlacementError` without a route or such a host."""
    address = _source_address(host)
    for name, addresses in psutil.net_if_addrs().items():
        if any(_bare(known.address) == address for known in addresses):
            return Interface(name=name, address=address)
    raise PlacementError(f"no interface of {socket.gethostname()} has the address {address}, which leads to {host}")


def only_interface() -> Interface:
    """Return the interface of a machine without a default route: its only one with an IPv4 address, or loopback on a
    machine without a network. Raises `PlacementError` if there are several."""
    up = {name for name, found in psutil.net_if_stats().items() if found.isup}
    known = [(name, one) for name, addresses in psutil.net_if_addrs().items() if name in up for one in addresses]
    found = [
        Interface(name=name, address=one.address)
        for name, one in known
        if one.family == socket.AF_INET and not one.address.startswith("127.")
    ]
    if len(found) > 1:
        names = ", ".join(f"{one.name} ({one.address})" for one in found)
        raise PlacementError(f"{socket.gethostname()} has no default route, and several interfaces: {names}")
    return found[0] if found else Interface(name="lo", address=LOOPBACK)


def interface_environment(interface: Interface) -> dict[str, str]:
    """Return variables that make gloo and nccl use one interface; `=` makes nccl take the name as a whole."""
    return {GLOO_VARIABLE: interface.name, NCCL_VARIABLE: f"={interface.name}"}


def own_address() -> str:
    """Return the address at which other hosts reach this process: of the interface that gloo uses, else of the default
    route; loopback without a network. Raises `PlacementError` for an interface without an address."""
    if named := os.environ.get(GLOO_VARIABLE):
        return address_of(named)
    try:
        return _source_address(ELSEWHERE)
    except PlacementError:
        return LOOPBACK


def address_of(interface: str) -> str:
    """Return this machine's address on an interface; the IPv4 address if it has both kinds."""
    known = psutil.net_if_addrs().get(interface, [])
    for family in (socket.AF_INET, socket.AF_INET6):
        for address in known:
            if address.family == family:
                return _bare(address.address)
    raise PlacementError(f"{GLOO_VARIABLE} is {interface!r}, which has no address on {socket.gethostname()}")


def _source_address(host: str) -> str:
    """Select the route by connecting a datagram socket, which sends nothing."""
    try:
        family, kind, protocol, _, there = socket.getaddrinfo(host, ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(there)
            return _bare(str(probe.getsockname()[0]))
    except OSError as error:
        raise PlacementError(f"{socket.gethostname()} has no route to {host}: {error}") from None


def _bare(address: str) -> str:
    """Remove the zone of a link-local IPv6 address."""
    return address.partition("%")[0]
