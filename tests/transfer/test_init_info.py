"""What engines are told where to meet."""

from __future__ import annotations

import pytest

from rlhf.errors import TransferError
from rlhf.transfer.init_info import engine_backend, init_info
from tests.transfer.meeting import rendezvous


@pytest.mark.parametrize("backend", ["gloo", "ipc"])
def test_our_receivers_get_the_rendezvous_and_their_rank(backend: str) -> None:
    meeting = rendezvous(3, backend=backend)
    info = init_info(meeting, 2)
    assert info["first_rank"] == 2
    assert (info["address"], info["port"], info["world_size"]) == ("127.0.0.1", meeting.port, 3)


def test_vllms_nccl_engine_gets_its_own_names() -> None:
    info = init_info(rendezvous(3, backend="nccl", bucket_bytes=77), 2)
    assert (info["rank_offset"], info["packed"], info["packed_buffer_size_bytes"]) == (2, True, 77)


def test_engines_are_started_with_a_name_that_vllm_knows() -> None:
    assert [engine_backend(name) for name in ("gloo", "nccl", "ipc")] == ["gloo", "nccl", "ipc_desk"]
    with pytest.raises(TransferError, match="smoke"):
        engine_backend("smoke")
