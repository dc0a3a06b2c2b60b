"""Where learner ranks meet: on loopback nobody else can reach them."""

from __future__ import annotations

import socket

import psutil
import pytest
import torch

from rlhf.trainer.rank import zero
from rlhf.trainer.rank.learner_worker import LearnerWorker
from rlhf.weight_sync.types import GroupAddress
from tests.warm.calls import WarmCalls

pytestmark = pytest.mark.engine


def joined(rank: int, address: GroupAddress) -> set[str]:
    """Runs in the rank's process: the addresses on which it listens when it has joined, and summed with the other."""
    zero.join(rank, 2, address, "cpu", timeout_seconds=20)
    torch.distributed.all_reduce(torch.ones(1))
    own = psutil.Process().net_connections(kind="tcp")
    return {one.laddr.ip for one in own if one.status == psutil.CONN_LISTEN}


def address() -> GroupAddress:
    """Runs in the process of the first rank, which holds the port."""
    return LearnerWorker(loopback=True).group_address()


def test_ranks_of_one_machine_listen_on_loopback_alone() -> None:
    processes = [WarmCalls() for _ in range(2)]
    try:
        place = processes[0].submit(address).result(timeout=60)
        with pytest.raises(OSError, match="in use"):
            socket.create_server((place.host, place.port))
        asked = [process.submit(joined, rank, place) for rank, process in enumerate(processes)]
        assert [one.result(timeout=60) for one in asked] == [{"127.0.0.1"}, {"127.0.0.1"}]
    finally:
        for process in processes:
            process.end()
