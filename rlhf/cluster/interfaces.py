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
    """The interface of the route to `host`. Raises `PlacementError` where there is no route or no such host."""
    address = _source_address(host)
    for name, addresses in psutil.net_if_addrs().items():
        if any(_bare(known.address) == address for known in addresses):
            return Interface(name=name, address=address)
    raise PlacementError(f"no interface of {socket.gethostname()} has the address {address}, which leads to {host}")


def interface_environment(interface: Interface) -> dict[str, str]:
    """Variables that make gloo and nccl use one interface. nccl treats a name as a prefix unless it is marked as
    exact."""
    return {GLOO_VARIABLE: interface.name, NCCL_VARIABLE: f"={interface.name}"}


def own_address() -> str:
    """The address at which other hosts reach this process: of the interface that gloo is told to use, else of the
    default route; loopback if there is no network. Raises `PlacementError` for an interface without an address."""
    if named := os.environ.get(GLOO_VARIABLE):
        return address_of(named)
    try:
        return _source_address(ELSEWHERE)
    except PlacementError:
        return LOOPBACK


def address_of(interface: str) -> str:
    """This machine's address on an interface; the IPv4 address if it has both kinds."""
    known = psutil.net_if_addrs().get(interface, [])
    for family in (socket.AF_INET, socket.AF_INET6):
        for address in known:
            if address.family == family:
                return _bare(address.address)
    raise PlacementError(f"{GLOO_VARIABLE} is {interface!r}, which has no address on {socket.gethostname()}")


def _source_address(host: str) -> str:
    """This machine's address on the route to `host`. Connecting a datagram socket sends nothing; it only selects the
    route."""
    try:
        family, kind, protocol, _, there = socket.getaddrinfo(host, ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(there)
            return _bare(str(probe.getsockname()[0]))
    except OSError as error:
        raise PlacementError(f"{socket.gethostname()} has no route to {host}: {error}") from None


def _bare(address: str) -> str:
    """A link-local IPv6 address without its zone."""
    return address.partition("%")[0]
