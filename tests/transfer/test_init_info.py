"""What engines are told where to meet."""

from __future__ import annotations

import pytest

from rlhf.errors import TransferError
from rlhf.transfer.init_info import engine_backend, init_info
from tests.transfer.meeting import rendezvous


@pytest.mark.parametrize("backend", ["gloo", "nccl", "ipc"])
def test_engines_get_the_rendezvous_and_their_rank(backend: str) -> None:
    meeting = rendezvous(3, backend=backend, senders=2)
    info = init_info(meeting, 2)
    assert info["first_rank"] == 2
    assert (info["address"], info["port"], info["world_size"], info["senders"]) == ("127.0.0.1", meeting.port, 3, 2)


def test_engines_are_started_with_names_that_are_not_vllms_own() -> None:
    assert [engine_backend(name) for name in ("gloo", "nccl", "ipc")] == ["gloo", "nccl_buckets", "ipc_buckets"]
    with pytest.raises(TransferError, match="smoke"):
        engine_backend("smoke")
