"""The exchange over which handles of shared memory travel."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from rlhf.errors import TransferError
from rlhf.transfer.handles import Chunk, HandleExchange, arguments_of, handle_of
from rlhf.transfer.types import Rendezvous
from tests.transfer.meeting import at_once, rendezvous, results

ARGUMENTS: tuple[Any, ...] = (
    torch.Tensor, torch.Size([64]), (1,), 0, torch.storage.TypedStorage, torch.uint8, 3, b"\x01\xfe" * 32, 4096, 512,
    False, b"/torch_1", 7, b"\x00" * 64, True,
)  # fmt: skip
"""Those of torch's `reduce_tensor` for a buffer of 64 bytes on a GPU."""


def chunk(*names: str) -> Chunk:
    return Chunk(
        names=list(names),
        dtype_names=["float32"] * len(names),
        shapes=[[1]] * len(names),
        tensor_sizes=[4] * len(names),
        handles={"GPU-1": handle_of(ARGUMENTS)},
    )


def exchanges(meeting: Rendezvous) -> list[HandleExchange]:
    return results(at_once(*[lambda r=r: HandleExchange(r, meeting) for r in range(meeting.world_size)]))


def test_every_engine_takes_every_update_of_every_publish() -> None:
    learner, *engines = exchanges(rendezvous(3, backend="ipc"))

    def offer() -> None:
        for number in range(3):
            learner.offer(chunk(f"{number}"))
        learner.end()

    for _ in range(2):
        _, *taken = results(at_once(offer, *[lambda e=e: list(e.chunks()) for e in engines]))
        assert taken == [[chunk(f"{number}") for number in range(3)]] * 2


def test_an_update_is_taken_only_when_all_have_loaded_it() -> None:
    learner, *engines = exchanges(rendezvous(2, backend="ipc", timeout_seconds=20))
    loaded: list[float] = []

    def load() -> None:
        for _ in engines[0].chunks():
            time.sleep(0.1)
            loaded.append(time.monotonic())

    def offer() -> float:
        learner.offer(chunk())
        offered = time.monotonic()
        learner.end()
        return offered

    offered, _ = results(at_once(offer, load))
    assert offered >= loaded[0]


@pytest.mark.waits
def test_an_engine_that_does_not_take_is_given_up_in_time() -> None:
    learner, _ = exchanges(rendezvous(2, backend="ipc", timeout_seconds=1))
    with pytest.raises(TransferError, match="did not come within 1 s"):
        learner.offer(chunk())


def test_a_handle_comes_out_as_the_arguments_that_it_went_in_as() -> None:
    assert arguments_of(handle_of(ARGUMENTS)) == ARGUMENTS
