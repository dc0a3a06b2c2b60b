"""Joining a Ray cluster that runs already: whether one answers at an address is known before Ray itself tries.

Where something else listens Ray would try for 40 seconds and more, in threads that cannot be stopped. So the head is
asked for its nodes first, over the same wire but with a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rlhf.cluster.quiet_ray import quiet_ray, ray_module
from rlhf.errors import PlacementError
from rlhf.transfer.interfaces import interface_toward

KNOCK_SECONDS = 10.0
"""For the head to answer a question that costs it nothing, and for this machine's own node to join."""
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A living node as the head tells of it."""

    id: str
    address: str


def join_ray(address: str) -> str:
    """Join the Ray cluster at an address, and return its head's host. Raises `PlacementError` when none answers there,
    or not to us."""
    ray = quiet_ray()
    more = knock(address) if names_a_port(address) else {}
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, **more)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise no_cluster(address, str(error)) from None
    return str(ray.get_runtime_context().gcs_address).rpartition(":")[0]


def names_a_port(address: str) -> bool:
    """Whether an address is `HOST:PORT`; `auto` and `ray://…` are for Ray to find."""
    host, _, port = address.rpartition(":")
    return bool(host) and port.isdecimal() and "/" not in host


def knock(address: str) -> dict[str, str]:
    """Ask the head at `HOST:PORT`, and find the node of this machine. Arguments of `ray.init` that choose it.

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
    """Ids of the nodes whose processes this machine shows."""
    return set(ray_module()._private.services.find_node_ids())


def chosen(own: Sequence[Peer], address: str) -> dict[str, str]:
    """Several nodes run on this machine, as seen by process ids, and may be in networks of their own: the one whose
    address is the one that leads to the head. Nothing to choose where all share one, and Ray takes the head's."""
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
    """The address, and the end of what a library says of it in one line."""
    line = cause.strip().partition("\n")[0].rpartition("last error: ")[2]
    return PlacementError(f"no Ray cluster answers at {address!r} ({line}); correct cluster.address")


def wrong_token(address: str) -> PlacementError:
    """The cluster admits whoever has its token."""
    return PlacementError(
        f"the Ray cluster at {address!r} refuses this process's token, or it has none; "
        "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as the cluster has them"
    )


def too_few(address: str, wanted: int, came: Sequence[str], seconds: float) -> PlacementError:
    """Nodes that did not join in time."""
    return PlacementError(
        f"{len(came)} of {wanted} nodes have joined the Ray cluster at {address!r} within {seconds:g} s "
        f"({', '.join(came)}); start the others, or lower cluster.nodes"
    )
