"""One contract for every backend: what a sender sends, vLLM's engine class in another process receives.

nccl needs two GPUs, ipc one; gloo needs none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest
import torch

from rlhf.errors import TransferError
from rlhf.weight_sync.sender import WeightSender, sender_for
from rlhf.weight_sync.types import Manifest
from tests.pace import scaled
from tests.warm.client import start
from tests.weight_sync.transports import fleeting, manifest_of, rendezvous

pytestmark = pytest.mark.engine

SHAPES = {"embedding": (100, 16), "bias": (16,), "scalar": (), "projection": (16, 3, 16), "head": (100, 16)}
BACKENDS = ["gloo", pytest.param("nccl", marks=pytest.mark.gpu), pytest.param("ipc", marks=pytest.mark.gpu)]


class Wire:
    """A connected sender here and its receiver in another process."""

    def __init__(self, backend: str) -> None:
        self.device = "cpu" if backend == "gloo" else "cuda:0"
        self.pipe, theirs = Pipe()
        with theirs:
            words = ("-m", "tests.integration.receiver_process", backend)
            self.process = start(words, environment=os.environ, inherited=[theirs.fileno()])
        self.answer(timeout_seconds=scaled(120))
        self.backend = backend
        self.connect()

    def connect(self) -> None:
        # Buckets of 4 kB: the embedding alone is larger.
        meeting = rendezvous(2, backend=self.backend, bucket_bytes=4000, timeout_seconds=scaled(20))
        sender = sender_for(self.backend)
        assert sender is not None
        self.sender: WeightSender = sender
        self.pipe.send(("connect", meeting))
        self.sender.connect(meeting)
        self.answer()

    def answer(self, timeout_seconds: float = scaled(30)) -> Any:
        assert self.pipe.poll(timeout_seconds), "the receiver does not answer"
        answer = self.pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def publish(self, tensors: dict[str, torch.Tensor], told: Manifest | None = None) -> dict[str, np.ndarray]:
        self.pipe.send(("receive", told or manifest_of(tensors)))
        with ThreadPoolExecutor(1) as threads:
            sent = threads.submit(self.sender.send, fleeting(tensors), manifest_of(tensors))
            received = self.answer()
            sent.result(timeout=scaled(30))
        return received

    def tensors(self, seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {n: torch.rand(s, generator=generator).to(self.device, dtype) for n, s in SHAPES.items()}

    def stop(self) -> None:
        self.sender.close()
        self.process.kill()
        self.process.wait(scaled(10))


@pytest.fixture(scope="module", params=BACKENDS)
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    wire = Wire(request.param)
    yield wire
    wire.stop()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_publish_arrives_whole_and_exact(wire: Wire, dtype: torch.dtype) -> None:
    for seed in range(3):
        tensors = wire.tensors(seed, dtype)
        received = wire.publish(tensors)
        assert list(received) == list(tensors)
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(received[name], tensor.float().cpu().numpy())


@pytest.mark.parametrize("wire", ["gloo"], indirect=True)
def test_gloo_refuses_a_manifest_that_the_engine_was_not_told(wire: Wire) -> None:
    tensors = wire.tensors(0, torch.float32)
    with pytest.raises(TransferError, match="sends another manifest"):
        wire.publish(tensors, told=Manifest(tensors=manifest_of(tensors).tensors[::-1]))
    with pytest.raises(TransferError, match="receive_weights came before init_transfer_engine, or after one that"):
        wire.publish(tensors)
    wire.connect()
    assert list(wire.publish(tensors)) == list(tensors)
