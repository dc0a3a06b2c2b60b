"""Joins an existing Ray cluster, after a check with a deadline that a Ray head answers at the address.

If another service listens there, Ray itself would try for 40 seconds and more, in threads that cannot be stopped. So
the head is first asked for its nodes, over the same protocol but with a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rlhf.cluster.interfaces import interface_toward
from rlhf.cluster.quiet_ray import quiet_ray, ray_module
from rlhf.errors import PlacementError

KNOCK_SECONDS = 10.0
"""Deadline for the head to answer a cheap question, and for this machine's own node to join."""
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A living node, as the head reports it."""

    id: str
    address: str


def join_ray(address: str) -> str:
    """Join the Ray cluster at an address, and return its head's host. Raises `PlacementError` when no head answers
    there, or it refuses this process."""
    ray = quiet_ray()
    more = knock(address) if names_a_port(address) else {}
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, **more)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise no_cluster(address, str(error)) from None
    return str(ray.get_runtime_context().gcs_address).rpartition(":")[0]


def names_a_port(address: str) -> bool:
    """Whether an address is `HOST:PORT`; Ray resolves `auto` and `ray://…` itself."""
    host, _, port = address.rpartition(":")
    return bool(host) and port.isdecimal() and "/" not in host


def knock(address: str) -> dict[str, str]:
    """Ask the head at `HOST:PORT` for its nodes, and find this machine's node. Returns arguments for `ray.init` that
    select it.

    Raises `PlacementError` within twice `KNOCK_SECONDS`.
    """
    deadline = time.monotonic() + KNOCK_SECONDS
    while not (own := [peer for peer in ask_for_peers(address) if peer.id in running_here()]):
        if time.monotonic() > deadline:
            raise PlacementError(
                f"this machine is not a node of the Ray cluster at {address!r}; start one here, or train on one of its"
            )
        time.sleep(POLL_SECONDS)
    return chosen(own, interface_toward(address.rpartition(":")[0]).address)


def running_here() -> set[str]:
    """Ids of the nodes that have processes on this machine."""
    return set(ray_module()._private.services.find_node_ids())


def chosen(own: Sequence[Peer], address: str) -> dict[str, str]:
    """Selects a node where several run on this machine, which may be in different networks: the one with the address of
    the route to the head. If all share one address there is nothing to select, and Ray uses the head's node."""
    addresses = {peer.address for peer in own}
    return {"_node_ip_address": address} if len(addresses) > 1 and address in addresses else {}


def ask_for_peers(address: str) -> Collection[Peer]:
    """The nodes of the cluster whose head listens at `HOST:PORT`. Raises `PlacementError` within `KNOCK_SECONDS`."""
    from rlhf.cluster.ray_head import HeadRefused, nodes_told

    try:
        return [Peer(id=node_id, address=its) for node_id, its in nodes_told(address, KNOCK_SECONDS)]
    except HeadRefused as refused:
        raise (wrong_token(address) if refused.token else no_cluster(address, refused.words)) from None


def no_cluster(address: str, cause: str) -> PlacementError:
    """The error for an address without a cluster, with the cause from the library's message."""
    line = cause.strip().partition("\n")[0].rpartition("last error: ")[2]
    return PlacementError(f"no Ray cluster answers at {address!r} ({line}); correct cluster.address")


def wrong_token(address: str) -> PlacementError:
    """The error for a missing or wrong token."""
    return PlacementError(
        f"the Ray cluster at {address!r} refuses this process's token, or it has none; "
        "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as the cluster has them"
    )


def too_few(address: str, wanted: int, came: Sequence[str], seconds: float) -> PlacementError:
    """The error for nodes that did not join in time."""
    return PlacementError(
        f"{len(came)} of {wanted} nodes have joined the Ray cluster at {address!r} within {seconds:g} s "
        f"({', '.join(came)}); start the others, or lower cluster.nodes"
    )
