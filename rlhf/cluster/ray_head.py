"""Queries the head of a Ray cluster about its nodes, over Ray's own protocol and with a deadline."""

from __future__ import annotations

from typing import Any

import grpc
from ray._private.gcs_utils import create_gcs_channel
from ray.core.generated.gcs_pb2 import GcsNodeInfo  # type: ignore[attr-defined]
from ray.core.generated.gcs_service_pb2 import GetAllNodeInfoRequest  # type: ignore[attr-defined]
from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub
from ray.exceptions import RayError


class HeadRefused(Exception):
    """The head did not answer. `token` says that the reason is a missing or wrong token."""

    def __init__(self, words: str, *, token: bool) -> None:
        super().__init__(words)
        self.words, self.token = words, token


def nodes_told(address: str, timeout_seconds: float) -> list[tuple[str, str]]:
    """`(id, address)` of every living node, as reported by the head at `HOST:PORT`. Raises `HeadRefused`."""
    try:
        with create_gcs_channel(address) as channel:
            head: Any = NodeInfoGcsServiceStub(channel)  # type: ignore[no-untyped-call]
            told = head.GetAllNodeInfo(GetAllNodeInfoRequest(), timeout=timeout_seconds)
    except grpc.RpcError as error:
        raise HeadRefused(str(error.details()), token=error.code() is grpc.StatusCode.UNAUTHENTICATED) from None
    except (RuntimeError, RayError) as error:  # Ray's settings require a token in this process, and it has none
        raise HeadRefused(str(error), token=True) from None
    alive = [node for node in told.node_info_list if node.state == GcsNodeInfo.GcsNodeState.ALIVE]
    return [(node.node_id.hex(), node.node_manager_address) for node in alive]
