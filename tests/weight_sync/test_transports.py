"""Both ends of a weight sync over gloo, CUDA IPC and nccl: whole tensors arrive, and no member waits for ever.

IPC runs over CPU memory that threads share, nccl over gloo with streams that only know their order.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch import Tensor

from rlhf.errors import TransferError
from rlhf.weight_sync import broadcast, cuda
from rlhf.weight_sync.ipc import IpcSender, IpcSource
from rlhf.weight_sync.sender import RankSender, sender_for
from rlhf.weight_sync.types import Rendezvous
from tests.integration.fake_streams import replace_cuda
from tests.pace import scaled
from tests.weight_sync.transports import at_once, broadcasting, fleeting, manifest_of, received, rendezvous, results

HERE = threading.local()


def on_gpu(uuid: str, call: Callable[[], Any]) -> Callable[[], Any]:
    """`call`, made in a process on this GPU."""

    def made() -> Any:
        HERE.gpu = uuid
        return call()

    return made


class SharedGpus:
    """Exported memory by its handle. `exports` counts those of each piece; `opened` are what readers still hold."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory: dict[bytes, Tensor] = {}
        self.exports: list[int] = []
        self.opened: WeakSet[Tensor] = WeakSet()
        self.open_at_collect: list[int] = []
        monkeypatch.setattr(cuda, "gpu_uuid", lambda: HERE.gpu)
        monkeypatch.setattr(cuda, "shared_memory", lambda count: torch.empty(count, dtype=torch.uint8))
        monkeypatch.setattr(cuda, "reduce_tensor", self.reduce)
        monkeypatch.setattr(cuda, "rebuild_cuda_tensor", self.rebuild)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
        monkeypatch.setattr(cuda, "synchronize", lambda: None)
        monkeypatch.setattr(cuda, "collect", lambda: self.open_at_collect.append(len(self.opened)))

    def reduce(self, memory: Tensor) -> tuple[Any, tuple[Any, ...]]:
        handle = len(self.exports).to_bytes(64, "big")
        self.exports.append(memory.data_ptr())
        self.memory[handle] = memory
        return None, (
            torch.Tensor, memory.shape, (1,), 0, torch.storage.TypedStorage, torch.uint8, 0, handle, memory.numel(), 0,
            False, b"counter", 0, b"\x00" * 64, True,
        )  # fmt: skip

    def rebuild(self, *arguments: Any) -> Tensor:
        _, size, _, _, _, dtype, device, handle, *_ = arguments
        assert (dtype, device) == (torch.uint8, 5), "a reader opens memory on its own GPU"
        opened = self.memory.pop(handle).view(size)  # an export may be opened once
        self.opened.add(opened)
        return opened


SHAPES = {"embedding": (40, 8), "query": (8, 8), "norm": (8,), "key": (8, 8), "head": (40, 8)}
BUCKET_BYTES = 600
"""The embedding and the head are larger; the others share a bucket, or two."""
GONE = {"gloo": "a peer is gone, or hangs", "nccl": "a peer is gone, or hangs", "ipc": "did not arrive within 1 s"}
TOLD = GONE | {"ipc": "the other end of the weight sync failed", "nccl": "the transfer was given up"}
Connect = Callable[..., tuple[Any, list[Any]]]


def tensors(rank: int = 0, seed: int = 0) -> dict[str, Tensor]:
    """What a rank gathers. In truth all ranks gather the same; here it tells who sent it."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(shape, generator=generator) + rank for name, shape in SHAPES.items()}


MANIFEST = manifest_of(tensors())


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return list(found) == list(expected) and all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> SharedGpus:
    return SharedGpus(monkeypatch)


@pytest.fixture(params=["gloo", "ipc", pytest.param("nccl", marks=pytest.mark.engine)])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def connect(backend: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Connect:
    """Join a sender and as many receivers as are asked for, with the `changes` of a rendezvous."""

    def connected(receivers: int = 1, **changes: Any) -> tuple[Any, list[Any]]:
        if backend == "ipc":
            request.getfixturevalue("gpus")
            (sender,), inlets = joined(["A"], ["A"] * receivers, **changes)
            return sender, inlets
        meeting = rendezvous(1 + receivers, backend=backend, **({"bucket_bytes": BUCKET_BYTES} | changes))
        if backend == "nccl":
            from rlhf.weight_sync.nccl import NcclGroup

            replace_cuda(monkeypatch, meeting)
            cpu = torch.device("cpu")
            monkeypatch.setattr(broadcast, "join_group", lambda rank, meeting: NcclGroup(rank, meeting, cpu))
        return broadcasting(meeting)

    return connected


def joined(senders: list[str], readers: list[str], **changes: Any) -> tuple[list[IpcSender], list[IpcSource]]:
    """A sender on each of these GPUs, and a reader on each of those."""
    changes = {"bucket_bytes": BUCKET_BYTES} | changes
    meeting: Rendezvous = rendezvous(1 + len(readers), backend="ipc", senders=len(senders), **changes)
    ranks = [IpcSender(rank) for rank in range(len(senders))]
    connecting = [
        on_gpu(gpu, lambda rank=rank: rank.connect(meeting)) for gpu, rank in zip(senders, ranks, strict=True)
    ]
    joining = [on_gpu(gpu, lambda n=n: IpcSource(n, meeting)) for n, gpu in enumerate(readers, start=1)]
    done = results(at_once(*connecting, *joining))
    return ranks, done[len(ranks) :]


@pytest.mark.parametrize("bucket_bytes", [1, BUCKET_BYTES, 2**20], ids=["each alone", "some alone", "all together"])
def test_every_receiver_gets_every_publish(connect: Connect, bucket_bytes: int) -> None:
    sender, inlets = connect(2, bucket_bytes=bucket_bytes)
    for seed in range(3):
        receiving = [partial(received, inlet, MANIFEST) for inlet in inlets]
        _, *copies = results(at_once(partial(sender.send, fleeting(tensors(seed=seed)), MANIFEST), *receiving))
        assert all(same(copy, tensors(seed=seed)) for copy in copies)


def test_a_slow_receiver_reads_no_bucket_that_is_being_filled(connect: Connect) -> None:
    sender, (inlet,) = connect()
    slowly = partial(received, inlet, MANIFEST, between=lambda: time.sleep(0.02))
    _, copy = results(at_once(lambda: sender.send(fleeting(tensors()), MANIFEST), slowly))
    assert same(copy, tensors())


def test_a_manifest_that_the_engine_was_not_told_ends_both_ends(connect: Connect, backend: str) -> None:
    sender, (inlet,) = connect(timeout_seconds=1)
    told = manifest_of({"norm": torch.zeros(8)})
    sent, got = at_once(lambda: sender.send(fleeting(tensors()), MANIFEST), lambda: received(inlet, told))
    assert "sends another manifest" in str(got.exception())
    if backend == "gloo":  # its peers leave a group when it goes wrong, as the receiver does in a worker
        inlet.close()
    assert (GONE if backend != "ipc" else TOLD)[backend] in str(sent.exception())


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [({"norm": torch.zeros(9)}, r"the next tensor is norm float32 \[9\]"), ({}, "there is no tensor for it")],
    ids=["a wrong shape", "a missing tensor"],
)
def test_a_tensor_that_is_not_the_manifests_ends_both_ends_and_the_next_send(
    connect: Connect, backend: str, wrong: dict[str, Tensor], complaint: str
) -> None:
    sender, (inlet,) = connect(timeout_seconds=3 if backend == "nccl" else 20)  # gloo in nccl's place leaves so late
    gathered = {**tensors(), **wrong} if wrong else {"embedding": tensors()["embedding"]}
    began = time.monotonic()
    sent, got = at_once(lambda: sender.send(fleeting(gathered), MANIFEST), lambda: received(inlet, MANIFEST))
    with pytest.raises(TransferError, match=complaint):
        sent.result()
    assert TOLD[backend] in str(got.exception())
    assert time.monotonic() - began < scaled(5)
    with pytest.raises(TransferError, match="after a publish that failed"):
        sender.send(fleeting(tensors()), MANIFEST)


@pytest.mark.waits
def test_a_peer_that_hangs_ends_either_end_in_time(connect: Connect, backend: str) -> None:
    sender, inlets = connect(timeout_seconds=1)
    began = time.monotonic()
    with pytest.raises(TransferError, match=GONE[backend]):
        sender.send(fleeting(tensors()), MANIFEST)
    sender, inlets = connect(timeout_seconds=1)
    with pytest.raises(TransferError, match=GONE[backend]):
        received(inlets[0], MANIFEST)
    assert time.monotonic() - began < scaled(8)


def test_ranks_without_a_sender_take_the_same_steps() -> None:
    steps: list[str] = []
    gathering = ((steps.append(name) or name, tensor) for name, tensor in tensors().items())
    assert set(RankSender(1).send(gathering, MANIFEST)) == {"gather", "send"}
    assert steps == list(SHAPES)


def test_an_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(TransferError, match="carrier pigeon"):
        sender_for("carrier pigeon")


@pytest.mark.waits
def test_gloo_a_member_that_never_comes_ends_the_meeting_in_time() -> None:
    began = time.monotonic()
    with pytest.raises(TransferError, match="rank 0 of 2"):
        broadcasting(rendezvous(1, timeout_seconds=1))[0].connect(rendezvous(2, timeout_seconds=1))
    assert time.monotonic() - began < scaled(5)


def test_gloo_a_member_that_is_gone_ends_the_send_at_once() -> None:
    sender, inlets = broadcasting(rendezvous(2, timeout_seconds=30))
    inlets[0].close()
    began = time.monotonic()
    with pytest.raises(TransferError, match="a peer is gone, or hangs"):
        sender.send(fleeting(tensors()), MANIFEST)
    assert time.monotonic() - began < scaled(5)


@pytest.mark.parametrize(
    "readers",
    [["D", "C", "B", "A"], ["B", "C", "D", "A", "A"], ["C"]],
    ids=["crossed", "two readers on one GPU", "three ranks without a reader"],
)
def test_ipc_every_engine_gets_every_tensor_from_the_rank_on_its_own_gpu(gpus: SharedGpus, readers: list[str]) -> None:
    ranks, inlets = joined(["A", "B", "C", "D"], readers)
    for seed in range(3):
        sends = [partial(rank.send, fleeting(tensors(number, seed)), MANIFEST) for number, rank in enumerate(ranks)]
        _, _, _, _, *copies = results(at_once(*sends, *[partial(received, inlet, MANIFEST) for inlet in inlets]))
        for gpu, copy in zip(readers, copies, strict=True):
            assert same(copy, tensors("ABCD".index(gpu), seed))
    assert len(gpus.exports) == 3 * len(readers)
    assert not gpus.memory, "every export was opened"


def test_ipc_ranks_without_readers_take_part_in_gathering_and_memory_is_freed_last(gpus: SharedGpus) -> None:
    ranks, inlets = joined(["A", "B"], ["A"])
    steps: list[str] = []
    gathering = ((steps.append(name) or name, tensor) for name, tensor in tensors(1).items())
    first, second = (partial(rank.send, passing, MANIFEST) for rank, passing in zip(
        ranks, (fleeting(tensors()), gathering), strict=True))  # fmt: skip
    results(at_once(first, second, lambda: received(inlets[0], MANIFEST)))
    assert steps == list(SHAPES)
    assert gpus.open_at_collect == [0], "the reader has closed the memory that its sender frees"


@pytest.mark.parametrize(("senders", "count"), [(["B", "C"], 0), (["A", "A"], 2)], ids=["none", "two"])
def test_ipc_an_engine_needs_exactly_one_rank_on_its_gpu(gpus: SharedGpus, senders: list[str], count: int) -> None:
    with pytest.raises(TransferError, match=f"{count} ranks of the learner are on GPU A"):
        joined(senders, ["A"])


def test_ipc_a_reader_that_comes_late_still_learns_why_its_rank_failed(gpus: SharedGpus) -> None:
    (rank,), (inlet,) = joined(["A"], ["A"])
    with suppress(TransferError):  # nothing refers to it afterwards, as in a rank's process
        rank.send(iter(()), MANIFEST)
    gc.collect()
    with pytest.raises(TransferError, match="the other end of the weight sync failed"):
        received(inlet, MANIFEST)


def test_ipc_a_rank_0_that_is_gone_is_named(gpus: SharedGpus) -> None:
    (rank,), (inlet,) = joined(["A"], ["A"])
    rank.__dict__.clear()
    gc.collect()
    with pytest.raises(TransferError, match="rank 0 of the learner"):
        received(inlet, MANIFEST)
