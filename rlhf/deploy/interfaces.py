"""The interface of this machine that leads to another one, and its address. Nothing is sent to find out."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import psutil

from rlhf.errors import UserError

FAR_AWAY = "198.51.100.1"
"""An address of nobody (RFC 5737): the way to it is the default route."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface and its IPv4 address."""

    name: str
    address: str


def towards(host: str) -> Interface:
    """The interface of the route to `host`; loopback where no route leads anywhere."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # of UDP: a choice of route, and no packet
        except OSError:
            return Interface(name="lo", address="127.0.0.1")
        address = probe.getsockname()[0]
    return next((one for one in interfaces() if one.address == address), Interface(name="?", address=address))


def named(name: str) -> Interface:
    """The interface `name`. Raises `UserError` with those that there are."""
    there = interfaces()
    found = next((one for one in there if one.name == name), None)
    if found is None:
        raise UserError(
            f"no interface {name!r} with an IPv4 address here; there are {', '.join(i.name for i in there)}"
        )
    return found


def interfaces() -> list[Interface]:
    """All that have an IPv4 address."""
    return [
        Interface(name=name, address=one.address)
        for name, addresses in psutil.net_if_addrs().items()
        for one in addresses
        if one.family == socket.AF_INET
    ]
