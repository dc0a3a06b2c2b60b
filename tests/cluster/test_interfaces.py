"""The interface that leads to a host, on the interfaces that this machine has."""

from __future__ import annotations

import psutil
import pytest

from rlhf.cluster.interfaces import (
    GLOO_VARIABLE,
    NCCL_VARIABLE,
    Interface,
    address_of,
    interface_environment,
    interface_toward,
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
