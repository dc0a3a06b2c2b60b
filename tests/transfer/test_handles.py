"""Handles of shared memory on their way through the signed store."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlhf.errors import TransferError
from rlhf.transfer.handles import HandleExchange, SyncStart, arguments_of, handle_of
from tests.transfer.meeting import at_once, rendezvous, results

ARGUMENTS: tuple[Any, ...] = (
    torch.Tensor, torch.Size([64]), (1,), 0, torch.storage.TypedStorage, torch.uint8, 3, b"\x01\xfe" * 32, 4096, 512,
    False, b"/torch_1", 7, b"\x00" * 64, True,
)  # fmt: skip
"""Those of torch's `reduce_tensor` for a buffer of 64 bytes on a GPU."""


def exchanges() -> list[HandleExchange]:
    meeting = rendezvous(2, backend="ipc")
    return results(at_once(*[lambda hosts=hosts: HandleExchange(meeting, hosts=hosts) for hosts in (True, False)]))


def test_a_handle_comes_out_as_the_arguments_that_it_went_in_as() -> None:
    assert arguments_of(handle_of(ARGUMENTS)) == ARGUMENTS


def test_a_reader_gets_the_opening_of_each_weight_sync() -> None:
    sender, reader = exchanges()
    for number in range(3):
        opening = SyncStart(digest=f"{number:064x}", handle=handle_of(ARGUMENTS))
        sender.open(1, opening)
        assert reader.opening(1) == opening
        sender.end()
        reader.end()


def test_an_opening_that_makes_no_sense_is_refused() -> None:
    sender, reader = exchanges()
    sender._store.set("0/open/1", '{"digest": "0", "handle": null}')
    with pytest.raises(TransferError, match="makes no sense"):
        reader.opening(1)
