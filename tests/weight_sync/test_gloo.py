"""Both ends of a broadcast over gloo: whole tensors arrive, and no one waits for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from rlhf.errors import TransferError
from rlhf.weight_sync.broadcast import BroadcastInlet, BroadcastSender
from rlhf.weight_sync.buckets import unpack_bucket
from rlhf.weight_sync.sender import RankSender, sender_for
from rlhf.weight_sync.types import Manifest, Rendezvous, TensorSpec
from tests.pace import scaled
from tests.weight_sync.meeting import at_once, rendezvous, results

SHAPES = {"embedding": (40, 8), "query": (8, 8), "norm": (8,), "head": (40, 8)}


def manifest() -> Manifest:
    return Manifest(
        tensors=tuple(TensorSpec(name=name, dtype="float32", shape=shape) for name, shape in SHAPES.items())
    )


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(shape, generator=generator) for name, shape in SHAPES.items()}


def receive(inlet: BroadcastInlet, told: Manifest | None = None) -> dict[str, torch.Tensor]:
    received = {}
    for bucket, buffer in inlet.arrivals(told or manifest()):
        received |= {name: tensor.clone() for name, tensor in unpack_bucket(bucket, buffer)}
    return received


def connected(meeting: Rendezvous) -> tuple[BroadcastSender, list[BroadcastInlet]]:
    sender = BroadcastSender()
    members = range(1, meeting.world_size)
    _, *inlets = results(
        at_once(lambda: sender.connect(meeting), *[lambda r=r: BroadcastInlet(r, meeting) for r in members])
    )
    return sender, inlets


@pytest.mark.parametrize("bucket_bytes", [1, 500, 2**20], ids=["each alone", "some alone", "all together"])
def test_every_member_receives_every_publish(bucket_bytes: int) -> None:
    meeting = rendezvous(3, bucket_bytes=bucket_bytes)
    sender, inlets = connected(meeting)
    for seed in range(3):
        sent = tensors(seed)
        _, *copies = results(
            at_once(
                partial(sender.send, iter(sent.items()), manifest()),
                *[lambda one=one: receive(one) for one in inlets],
            )
        )
        assert all(torch.equal(copy[name], sent[name]) for copy in copies for name in SHAPES)


def test_a_tensor_may_be_overwritten_when_the_next_is_asked_for() -> None:
    meeting = rendezvous(2, bucket_bytes=2**20)
    sender, (inlet,) = connected(meeting)

    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tensors(0).items():
            yield name, tensor
            tensor.fill_(float("nan"))

    _, copy = results(at_once(lambda: sender.send(gathered(), manifest()), lambda: receive(inlet)))
    assert all(torch.equal(copy[name], tensor) for name, tensor in tensors(0).items())


def test_ranks_without_a_sender_take_the_same_steps() -> None:
    steps = []
    gathering = ((steps.append(name) or name, tensor) for name, tensor in tensors(0).items())
    assert set(RankSender(1).send(gathering, manifest())) == {"gather", "send"}
    assert steps == list(SHAPES)


@pytest.mark.waits
def test_a_member_that_never_comes_ends_the_meeting_in_time() -> None:
    started = time.monotonic()
    with pytest.raises(TransferError, match="rank 0 of 2"):
        BroadcastSender().connect(rendezvous(2, timeout_seconds=1))
    assert time.monotonic() - started < scaled(5)


@pytest.mark.waits
def test_a_member_that_hangs_ends_the_send_in_time() -> None:
    sender, inlets = connected(rendezvous(2, timeout_seconds=1))
    started = time.monotonic()
    with pytest.raises(TransferError, match="a peer is gone, or hangs"):
        sender.send(iter(tensors(0).items()), manifest())
    assert time.monotonic() - started < scaled(5)
    assert inlets


def test_a_member_that_is_gone_ends_the_send_at_once() -> None:
    sender, inlets = connected(rendezvous(2, timeout_seconds=30))
    inlets[0].close()
    started = time.monotonic()
    with pytest.raises(TransferError, match="a peer is gone, or hangs"):
        sender.send(iter(tensors(0).items()), manifest())
    assert time.monotonic() - started < scaled(5)


def test_after_a_send_that_failed_the_next_one_is_refused() -> None:
    sender, inlets = connected(rendezvous(2))
    wrong = [("other", torch.zeros(1))]
    sent, received = at_once(lambda: sender.send(iter(wrong), manifest()), lambda: receive(inlets[0]))
    assert "the next tensor is other" in str(sent.exception())
    assert "a peer is gone" in str(received.exception())
    with pytest.raises(TransferError, match="after a publish that failed"):
        sender.send(iter(tensors(0).items()), manifest())


def test_an_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(TransferError, match="carrier pigeon"):
        sender_for("carrier pigeon")
