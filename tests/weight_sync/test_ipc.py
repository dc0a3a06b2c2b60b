"""Both ends of a weight sync over IPC, over shared CPU memory: four ranks, and engines of different sizes."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest
import torch

from rlhf.errors import TransferError
from rlhf.weight_sync.buckets import unpack_bucket
from rlhf.weight_sync.ipc import IpcInlet, IpcSender
from rlhf.weight_sync.types import Manifest, Rendezvous, TensorSpec
from tests.pace import scaled
from tests.weight_sync.meeting import at_once, rendezvous, results
from tests.weight_sync.shared_gpu import SharedGpus, on_gpu

SHAPES = {"embedding": (40, 8), "query": (8, 8), "norm": (8,), "key": (8, 8), "head": (40, 8)}
BUCKET_BYTES = 600
"""The embedding and the head are larger; the others share a bucket, or two."""


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> SharedGpus:
    return SharedGpus(monkeypatch)


def manifest(*names: str) -> Manifest:
    return Manifest(
        tensors=tuple(TensorSpec(name=name, dtype="float32", shape=SHAPES[name]) for name in names or SHAPES)
    )


def tensors(rank: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """What a rank gathers. In truth all ranks gather the same; here it tells who sent it."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(shape, generator=generator) + rank for name, shape in SHAPES.items()}


def fleeting(whole: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that are gone when the next one is asked for, as under ZeRO-3."""
    for name, tensor in whole.items():
        yield name, tensor
        tensor.fill_(float("nan"))


def received(inlet: IpcInlet, told: Manifest | None = None, wait_seconds: float = 0) -> dict[str, torch.Tensor]:
    found = {}
    for bucket, buffer in inlet.arrivals(told or manifest()):
        time.sleep(wait_seconds)
        found |= {name: tensor.clone() for name, tensor in unpack_bucket(bucket, buffer)}
        del buffer
    return found


def joined(senders: list[str], readers: list[str], **changes: float) -> tuple[list[IpcSender], list[IpcInlet]]:
    """A sender on each of these GPUs, and a reader on each of those."""
    meeting: Rendezvous = rendezvous(
        1 + len(readers), backend="ipc", senders=len(senders), bucket_bytes=BUCKET_BYTES, **changes
    )
    ranks = [IpcSender(rank) for rank in range(len(senders))]
    connecting = [
        on_gpu(gpu, lambda rank=rank: rank.connect(meeting)) for gpu, rank in zip(senders, ranks, strict=True)
    ]
    joining = [on_gpu(gpu, lambda n=n: IpcInlet(n, meeting)) for n, gpu in enumerate(readers, start=1)]
    done = results(at_once(*connecting, *joining))
    return ranks, done[len(ranks) :]


@pytest.mark.parametrize(
    "readers",
    [["A", "B", "C", "D"], ["D", "C", "B", "A"], ["B", "C", "D", "A", "A"], ["C"]],
    ids=["in order", "crossed", "two readers on one GPU", "three ranks without a reader"],
)
def test_every_engine_gets_every_tensor_from_the_rank_on_its_own_gpu(gpus: SharedGpus, readers: list[str]) -> None:
    ranks, inlets = joined(["A", "B", "C", "D"], readers)
    for seed in range(3):
        sends = [partial(rank.send, fleeting(tensors(number, seed)), manifest()) for number, rank in enumerate(ranks)]
        _, _, _, _, *copies = results(at_once(*sends, *[lambda one=one: received(one) for one in inlets]))
        for gpu, copy in zip(readers, copies, strict=True):
            expected = tensors("ABCD".index(gpu), seed)
            assert list(copy) == list(expected)
            assert all(torch.equal(copy[name], expected[name]) for name in expected)
    assert len(gpus.exports) == 3 * len(readers)
    assert not gpus.memory, "every export was opened"


def test_a_reader_that_is_slow_reads_no_bucket_that_is_being_filled(gpus: SharedGpus) -> None:
    (rank,), inlets = joined(["A"], ["A"])
    _, copy = results(
        at_once(lambda: rank.send(fleeting(tensors(0)), manifest()), lambda: received(inlets[0], wait_seconds=0.02))
    )
    assert all(torch.equal(copy[name], tensor) for name, tensor in tensors(0).items())


def test_a_sender_frees_its_memory_when_no_reader_has_it_open(gpus: SharedGpus) -> None:
    (rank,), inlets = joined(["A"], ["A"])
    results(at_once(lambda: rank.send(fleeting(tensors(0)), manifest()), lambda: received(inlets[0])))
    assert gpus.open_at_collect == [0]


def test_ranks_without_readers_take_part_in_gathering(gpus: SharedGpus) -> None:
    ranks, inlets = joined(["A", "B"], ["A"])
    steps: list[str] = []
    gathering = ((steps.append(name) or name, tensor) for name, tensor in tensors(1).items())
    results(
        at_once(
            lambda: ranks[0].send(fleeting(tensors(0)), manifest()),
            lambda: ranks[1].send(gathering, manifest()),
            lambda: received(inlets[0]),
        )
    )
    assert steps == list(SHAPES)


@pytest.mark.parametrize(("senders", "count"), [(["B", "C"], 0), (["A", "A"], 2)], ids=["none", "two"])
def test_an_engine_needs_exactly_one_rank_on_its_gpu(gpus: SharedGpus, senders: list[str], count: int) -> None:
    with pytest.raises(TransferError, match=f"{count} ranks of the learner are on GPU A"):
        joined(senders, ["A"])


def test_an_engine_refuses_a_manifest_that_it_was_not_told_and_the_rank_hears_of_it(gpus: SharedGpus) -> None:
    (rank,), (inlet,) = joined(["A"], ["A"], timeout_seconds=20)
    began = time.monotonic()
    sent, got = at_once(
        lambda: rank.send(fleeting(tensors(0)), manifest()), lambda: received(inlet, told=manifest("norm"))
    )
    assert "sends another manifest" in str(got.exception())
    assert "the other end of the weight sync failed" in str(sent.exception())
    assert time.monotonic() - began < scaled(5)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [({"norm": torch.zeros(9)}, r"the next tensor is norm float32 \[9\]"), ({}, "there is no tensor for it")],
    ids=["a wrong shape", "a missing tensor"],
)
def test_a_tensor_that_is_not_the_manifests_ends_both_ends_at_once(
    gpus: SharedGpus, wrong: dict[str, torch.Tensor], complaint: str
) -> None:
    (rank,), (inlet,) = joined(["A"], ["A"], timeout_seconds=20)
    gathered = {**tensors(0), **wrong} if wrong else {"embedding": tensors(0)["embedding"]}
    began = time.monotonic()
    sent, got = at_once(lambda: rank.send(fleeting(gathered), manifest()), lambda: received(inlet))
    with pytest.raises(TransferError, match=complaint):
        sent.result()
    assert "the other end of the weight sync failed" in str(got.exception())
    assert time.monotonic() - began < scaled(5)
    with pytest.raises(TransferError, match="after a publish that failed"):
        rank.send(fleeting(tensors(0)), manifest())


def test_a_reader_that_comes_late_still_learns_why_its_rank_failed(gpus: SharedGpus) -> None:
    (rank,), (inlet,) = joined(["A"], ["A"], timeout_seconds=20)
    with suppress(TransferError):  # kept by nobody, as in a rank's process, and with it what it refers to
        rank.send(iter(()), manifest())
    gc.collect()
    with pytest.raises(TransferError, match="the other end of the weight sync failed"):
        received(inlet)


def test_a_rank_0_that_is_gone_is_named(gpus: SharedGpus) -> None:
    (rank,), (inlet,) = joined(["A"], ["A"], timeout_seconds=20)
    rank.__dict__.clear()
    gc.collect()
    with pytest.raises(TransferError, match="rank 0 of the learner"):
        received(inlet)


@pytest.mark.waits
def test_a_peer_that_is_gone_ends_both_ends_in_time(gpus: SharedGpus) -> None:
    (rank,), (inlet,) = joined(["A"], ["A"], timeout_seconds=1)
    with pytest.raises(TransferError, match="did not come within 1 s"):
        rank.send(fleeting(tensors(0)), manifest())
    _, (other,) = joined(["A"], ["A"], timeout_seconds=1)
    with pytest.raises(TransferError, match="did not come within 1 s"):
        received(other)
    assert inlet
