"""Two hosts of their own network on one machine: network namespaces joined by a cable that can be cut."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

IP_SECONDS = 20
FREE_SUBNETS = range(64, 255)


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """A host: the name of its namespace, its address, and its end of the cable."""

    name: str
    address: str
    interface: str

    def command(self, *words: object) -> list[str]:
        """`words` as they run on this host."""
        return ["ip", "netns", "exec", self.name, *map(str, words)]

    def plug(self, state: str) -> None:
        """Take this end of the cable `up` or `down`. The address stays; the route to the peer goes and comes back."""
        ip("-n", self.name, "link", "set", self.interface, state)

    def processes(self) -> list[psutil.Process]:
        """What runs on this host."""
        named = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, timeout=IP_SECONDS)
        found = []
        for pid in named.stdout.split():
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(pid)))
        return found


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=IP_SECONDS)


@contextmanager
def two_hosts(mark: str) -> Iterator[tuple[Namespace, Namespace]]:
    """Two hosts on a subnet of their own. At the end whatever still runs on them is killed, and they are removed.

    `mark` begins the names of namespaces and interfaces, up to ten letters.
    """
    subnet = next(number for number in FREE_SUBNETS if f"10.231.{number}." not in _addresses())
    first, second = (
        Namespace(name=f"{mark}-{os.getpid()}-{letter}", address=f"10.231.{subnet}.{host}", interface=f"{mark}{letter}")
        for host, letter in enumerate("ab", start=1)
    )
    try:
        for namespace in (first, second):
            ip("netns", "add", namespace.name)
        ip("-n", first.name, "link", "add", first.interface, "type", "veth",
           "peer", "name", second.interface, "netns", second.name)  # fmt: skip
        for namespace in (first, second):
            ip("-n", namespace.name, "addr", "add", f"{namespace.address}/24", "dev", namespace.interface)
            ip("-n", namespace.name, "link", "set", "lo", "up")
            namespace.plug("up")
        yield first, second
    finally:
        for namespace in (first, second):
            for process in namespace.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            subprocess.run(["ip", "netns", "del", namespace.name], capture_output=True, timeout=IP_SECONDS)


def _addresses() -> str:
    """Every address of this machine itself, so that the subnet is none of its own."""
    return " ".join(entry.address for entries in psutil.net_if_addrs().values() for entry in entries)
