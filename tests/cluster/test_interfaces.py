"""The interface that leads to a host, on the interfaces that this machine has."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest

from rlhf.cluster.interfaces import (
    GLOO_VARIABLE,
    NCCL_VARIABLE,
    Interface,
    address_of,
    interface_environment,
    interface_toward,
    only_interface,
    own_address,
)
from rlhf.errors import PlacementError


def test_the_way_to_loopback_is_the_loopback_interface() -> None:
    assert interface_toward("127.0.0.1") == Interface(name="lo", address="127.0.0.1")
    assert interface_toward("localhost").name == "lo"


@pytest.mark.parametrize("interface", sorted(name for name, up in psutil.net_if_stats().items() if up.isup))
def test_the_way_to_an_address_of_this_machine_is_the_interface_that_has_it(interface: str) -> None:
    for known in psutil.net_if_addrs()[interface]:
        if known.family.name == "AF_INET":
            assert interface_toward(known.address) == Interface(name=interface, address=known.address)


def test_gloo_gets_the_name_and_nccl_is_told_that_it_is_whole() -> None:
    interface = Interface(name="eth1", address="10.0.0.7")
    assert interface_environment(interface) == {GLOO_VARIABLE: "eth1", NCCL_VARIABLE: "=eth1"}


def test_a_host_without_a_name_or_a_way_is_refused_by_name() -> None:
    with pytest.raises(PlacementError, match=r"has no route to no-such-host\.invalid"):
        interface_toward("no-such-host.invalid")


def test_the_own_address_is_that_of_the_interface_gloo_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GLOO_VARIABLE, "lo")
    assert own_address() == address_of("lo") == "127.0.0.1"
    monkeypatch.setenv(GLOO_VARIABLE, "ib7")
    with pytest.raises(PlacementError, match=r"GLOO_SOCKET_IFNAME is 'ib7', which has no address on"):
        own_address()
    monkeypatch.delenv(GLOO_VARIABLE)
    assert own_address() in {known.address for all_known in psutil.net_if_addrs().values() for known in all_known}


def interfaces(monkeypatch: pytest.MonkeyPatch, **addresses: str) -> None:
    """This machine has loopback, and these."""
    known = {"lo": "127.0.0.1", **addresses}
    entry = lambda address: SimpleNamespace(family=socket.AF_INET, address=address)  # noqa: E731
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {name: [entry(address)] for name, address in known.items()})
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {name: SimpleNamespace(isup=name != "off0") for name in known})


def test_without_a_default_route_the_only_interface_is_taken_and_several_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interfaces(monkeypatch)
    assert only_interface() == Interface(name="lo", address="127.0.0.1")
    interfaces(monkeypatch, ib0="10.1.0.7", off0="10.2.0.7")
    assert only_interface() == Interface(name="ib0", address="10.1.0.7")
    interfaces(monkeypatch, ib0="10.1.0.7", ib1="10.2.0.7")
    with pytest.raises(PlacementError, match=r"several interfaces: ib0 \(10\.1\.0\.7\), ib1 \(10\.2\.0\.7\)"):
        only_interface()
