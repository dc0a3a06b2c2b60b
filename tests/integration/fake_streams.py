"""CUDA's streams and nccl without either: streams do nothing but know what they are ordered after, nccl is gloo."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf.weight_sync.gloo import GlooGroup
from rlhf.weight_sync.types import Rendezvous
from tests.weight_sync.transports import rendezvous

HERE = threading.local()


class Event:
    """What a stream had done when it was recorded. It has happened once the broadcasts before it have succeeded: as
    with nccl, one whose peer is gone never ends."""

    def __init__(self, stream: Stream) -> None:
        self.known, self.works = dict(stream.known), list(stream.works)

    def query(self) -> bool:
        return all(work.is_completed() and work.exception() is None for work in self.works)


class Stream:
    """Counts its operations; `known` is the last operation of every stream that its next one comes after."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.known: dict[Stream, int] = {self: 0}
        self.works: list[Any] = []

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(Event(other))

    def wait_event(self, event: Event) -> None:
        for stream, done in event.known.items():
            self.known[stream] = max(done, self.known.get(stream, 0))

    def record_event(self) -> Event:
        return Event(self)

    def synchronize(self) -> None:
        for work in self.works:
            work.wait()
        current().wait_stream(self)


class Uses:
    """Uses of memory by streams; `crossings` are those that did not come after the one before them."""

    def __init__(self) -> None:
        self.last: dict[int, tuple[Stream, int, str]] = {}
        self.crossings: list[str] = []
        self.lock = threading.Lock()

    def use(self, stream: Stream, memory: Tensor, what: str) -> None:
        with self.lock:
            before = self.last.get(memory.data_ptr())
            if before and stream.known.get(before[0], 0) < before[1]:
                self.crossings.append(f"{what} does not wait for {before[2]}")
            stream.known[stream] += 1
            self.last[memory.data_ptr()] = (stream, stream.known[stream], what)


class FakeNccl:
    """vLLM's binding of nccl for one member, over gloo."""

    def __init__(self, rank: int, meeting: Rendezvous, uses: Uses) -> None:
        self.available, self._uses = True, uses
        self._gloo: Any = GlooGroup(rank, meeting)

    def broadcast(self, tensor: Tensor, src: int, stream: Stream | None = None) -> None:
        stream = stream or current()
        self._uses.use(stream, tensor, "a broadcast")
        self._gloo.start_broadcast(tensor)
        stream.works.append(self._gloo._started[-1])

    def all_reduce(self, tensor: Tensor, answer: Tensor | None = None, *, stream: Stream) -> Tensor:
        answer = torch.empty_like(tensor) if answer is None else answer
        answer.copy_(tensor)
        stream.works.append(self._gloo._group.allreduce(answer))
        return answer

    def destroy(self) -> None:
        self._gloo.close()


def current(*_: Any) -> Stream:
    """The current stream of this thread."""
    if not hasattr(HERE, "stream"):
        HERE.stream = Stream()
    stream: Stream = HERE.stream
    return stream


def become(stream: Stream) -> None:
    HERE.stream = stream


@contextmanager
def inside(stream: Stream) -> Iterator[None]:
    before = current()
    become(stream)
    yield
    become(before)


def replace_cuda(monkeypatch: pytest.MonkeyPatch, meeting: Rendezvous) -> Uses:
    """Until the test ends `NcclGroup` joins `meeting` over gloo, and CUDA's streams are these."""
    from rlhf.weight_sync import nccl  # which imports vLLM

    uses, beneath = Uses(), replace(meeting, address=rendezvous(2).address)

    def joined(unique_id: bytes, rank: int, world_size: int, device: int) -> FakeNccl:
        become(Stream())  # as vLLM does
        return FakeNccl(rank, beneath, uses)

    monkeypatch.setattr(nccl, "uid_init_process_group", joined)
    for name, fake in {"Stream": Stream, "current_stream": current, "set_stream": become, "stream": inside}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return uses
