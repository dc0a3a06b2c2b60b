"""A weight sync over nccl, with gloo in its place and streams that only know their order: our sender, and vLLM's own
producer, against the receiver that runs in vLLM's workers."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlhf.errors import TransferError
from rlhf.trainer.rank.learner_worker import LearnerWorker
from rlhf.weight_sync import broadcast
from rlhf.weight_sync.broadcast import BroadcastSender
from rlhf.weight_sync.buckets import pack_bucket
from rlhf.weight_sync.types import Manifest, Rendezvous, engine_backend
from tests.integration.fake_streams import Event, Stream, Uses, current, replace_cuda
from tests.pace import scaled
from tests.weight_sync.transports import fleeting, manifest_of, rendezvous

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore:Tensor 'bucket' has size")]

SHAPES = {"embedding": (100, 16), "bias": (16,), "scalar": (), "key": (8, 16), "projection": (16, 3, 16), "norm": (16,)}
CPU = torch.device("cpu")
BUCKET_BYTES = 4000
"""The embedding alone is larger."""


class Pair:
    """A sender and a receiver, joined. Each works in a thread of its own, with a current stream of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from rlhf.weight_sync.nccl import NcclGroup

        self.meeting: Rendezvous = rendezvous(2, backend="nccl", bucket_bytes=BUCKET_BYTES)
        self.uses = replace_cuda(monkeypatch, self.meeting)
        monkeypatch.setattr(broadcast, "join_group", lambda rank, meeting: NcclGroup(rank, meeting, CPU))
        self.sender = BroadcastSender()
        self.receiver, self.model = made_receiver()
        note_uses(monkeypatch, self.uses, self.receiver)
        self.here, self.there = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        connected = self.at_once(
            lambda: self.sender.connect(self.meeting),
            lambda: self.receiver.init_transfer_engine(
                self.receiver.parse_init_info({"rendezvous": self.meeting, "first_rank": 1})
            ),
        )
        assert connected == (None, None)

    def at_once(self, send: Callable[[], Any], receive: Callable[[], Any]) -> tuple[str | None, str | None]:
        """How the two ended: the text of a `TransferError`, or None."""
        sent, received = (call.exception(scaled(60)) for call in (self.here.submit(send), self.there.submit(receive)))
        assert all(isinstance(error, TransferError) for error in (sent, received) if error)
        return sent and str(sent), received and str(received)

    def publish(self, tensors: dict[str, Tensor]) -> tuple[str | None, str | None]:
        manifest = manifest_of(tensors)
        return self.at_once(lambda: self.sender.send(fleeting(tensors), manifest), lambda: self.receive(manifest))

    def receive(self, told: Manifest) -> None:
        self.model.loaded.clear()
        self.receiver.start_weight_update()
        self.receiver.receive_weights(self.receiver.parse_update_info({"manifest": told}))
        self.receiver.finish_weight_update()


def made_receiver() -> tuple[Any, Any]:
    """What receives in an engine's worker: vLLM's engine class, around a model that remembers."""
    from vllm.config import WeightTransferConfig
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    import rlhf.weight_sync.vllm_worker  # noqa: F401 - it registers the receiver

    class Memory(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loaded: dict[str, np.ndarray] = {}

        def load_weights(self, weights: Any) -> set[str]:
            self.loaded |= {name: weight.float().numpy().copy() for name, weight in weights}
            return set(self.loaded)

    parallel = SimpleNamespace(rank=0, world_size=1, data_parallel_index=0)
    config = SimpleNamespace(parallel_config=parallel, model_config=None, lora_config=None)
    transfer, model = WeightTransferConfig(backend=engine_backend("gloo")), Memory()
    return WeightTransferEngineFactory.create_engine(transfer, config, CPU, model), model


def note_uses(monkeypatch: pytest.MonkeyPatch, uses: Uses, receiver: Any) -> None:
    """Note where the sender fills memory and where the receiver reads it."""
    load_all = receiver._load_all

    def packed(bucket: Any, tensors: Any, buffer: Tensor) -> Tensor:
        uses.use(current(), buffer, "packing")
        return pack_bucket(bucket, tensors, buffer)

    def noted(arrivals: Iterator[tuple[Any, Tensor]]) -> Iterator[tuple[Any, Tensor]]:
        for bucket, buffer in arrivals:
            uses.use(current(), buffer, "loading")
            yield bucket, buffer

    monkeypatch.setattr(broadcast, "pack_bucket", packed)
    monkeypatch.setattr(receiver, "_load_all", lambda arrivals, held: load_all(noted(arrivals), held))


def weights(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


def assert_loaded(pair: Pair, tensors: dict[str, Tensor]) -> None:
    assert list(pair.model.loaded) == list(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(pair.model.loaded[name], tensor.float().numpy())


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    pair = Pair(monkeypatch)
    yield pair
    pair.sender.close()
    pair.receiver.shutdown()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_publish_arrives_exactly_and_no_stream_touches_what_another_still_uses(
    pair: Pair, dtype: torch.dtype
) -> None:
    for seed in range(3):
        assert pair.publish(weights(seed, dtype)) == (None, None)
        assert_loaded(pair, weights(seed, dtype))
    assert not pair.uses.crossings
    assert len(pair.uses.last) > 4, "memory was used"


def test_streams_that_do_not_wait_are_seen_to_cross(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "wait_event", lambda stream, event: None)
    assert pair.publish(weights(0)) == (None, None)
    assert {"loading does not wait for a broadcast", "a broadcast does not wait for packing"} <= set(
        pair.uses.crossings
    )


def test_nccl_that_moves_nothing_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlhf.weight_sync import nccl

    replace_cuda(monkeypatch, rendezvous(2))
    monkeypatch.setattr(nccl, "uid_init_process_group", lambda *_: type("Disabled", (), {"available": False}))
    with pytest.raises(TransferError, match="nccl does not work in this process: libnccl is missing"):
        nccl.NcclGroup(0, rendezvous(2, backend="nccl"), torch.device("cpu"))


def test_joining_ends_at_the_deadline_where_a_member_does_not_and_the_next_group_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rlhf.weight_sync import nccl

    missing = threading.Event()
    with monkeypatch.context() as blocking:
        replace_cuda(blocking, rendezvous(2))
        blocking.setattr(nccl, "uid_init_process_group", lambda *_: missing.wait(scaled(60)))
        with pytest.raises(TransferError, match=r"joining as rank 0 of 2 failed: .* hangs for 0\.2 s"):
            nccl.NcclGroup(0, rendezvous(2, backend="nccl", timeout_seconds=0.2), CPU)
    pair = Pair(monkeypatch)
    assert pair.publish(weights(0)) == (None, None)
    missing.set()
    pair.sender.close()
    pair.receiver.shutdown()


def give_up_soon(meeting: Rendezvous) -> threading.Timer:
    """From a rank's event loop, as the publisher asks for it."""
    worker = LearnerWorker(loopback=True)
    timer = threading.Timer(0.5, lambda: asyncio.run(worker.give_up(meeting.address)))
    timer.start()
    return timer


def test_a_broadcast_that_never_ends_is_given_up_on_both_sides_at_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Event, "query", lambda event: False)
    began, timer = time.monotonic(), give_up_soon(pair.meeting)
    assert pair.publish(weights(0)) == ("a broadcast failed: the transfer was given up",) * 2
    assert time.monotonic() - began < scaled(1.5), "its deadline is 20 s"
    timer.join()


def test_an_engine_stops_waiting_for_a_rank_0_that_has_left(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Event, "query", lambda event: False)
    began = time.monotonic()
    ended = pair.at_once(pair.sender.close, lambda: pair.receive(manifest_of(weights(0))))
    assert ended == (None, "a broadcast failed: the transfer was given up")
    assert time.monotonic() - began < scaled(1.5)


def test_joining_is_given_up_too_and_without_rank_0_it_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlhf.weight_sync import nccl

    meeting, missing = rendezvous(2, backend="nccl"), threading.Event()
    replace_cuda(monkeypatch, meeting)
    monkeypatch.setattr(nccl, "uid_init_process_group", lambda *_: missing.wait(scaled(60)))
    timer = give_up_soon(meeting)
    with pytest.raises(TransferError, match="joining as rank 0 of 2 failed: the transfer was given up"):
        nccl.NcclGroup(0, meeting, CPU)
    timer.join()
    missing.set()
    with pytest.raises(TransferError, match=r"joining as rank 1 of 2 failed: rank 0 is gone, or hangs for 0\.5 s"):
        nccl.NcclGroup(1, rendezvous(2, backend="nccl", timeout_seconds=0.5), CPU)


class NeverEnding:
    """A binding of nccl whose collectives are queued; it refers to no tensor, as nccl does not."""

    available = True

    def __init__(self) -> None:
        self.queued: list[weakref.ref[Tensor]] = []

    def broadcast(self, tensor: Tensor, src: int, stream: Stream) -> None:
        self.queued.append(weakref.ref(tensor))

    def all_reduce(self, tensor: Tensor, answer: Tensor | None = None, *, stream: Stream) -> Tensor:
        answer = torch.empty_like(tensor) if answer is None else answer
        self.queued += [weakref.ref(tensor), weakref.ref(answer)]
        return answer


def test_memory_of_a_collective_is_nobody_elses_before_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch gives a freed tensor's memory to the next one of the same stream: a small weight, which the barrier at the
    end of a weight sync would overwrite while it is loaded."""
    from rlhf.weight_sync import nccl

    meeting, binding = rendezvous(1, backend="nccl"), NeverEnding()
    replace_cuda(monkeypatch, meeting)
    monkeypatch.setattr(nccl, "uid_init_process_group", lambda *_: binding)
    group = nccl.NcclGroup(0, meeting, CPU)
    group.start_broadcast(torch.zeros(32))
    group.start_barrier()
    assert [one() is not None for one in binding.queued] == [True, True, True]
    group.finish_next()
    assert [one() is not None for one in binding.queued] == [False, True, True]


def test_joining_leaves_the_threads_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlhf.weight_sync.nccl import NcclGroup

    meeting = rendezvous(1, backend="nccl")
    replace_cuda(monkeypatch, meeting)
    before = current()
    NcclGroup(0, meeting, torch.device("cpu")).close()
    assert current() is before
