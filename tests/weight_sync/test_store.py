"""The stores where members meet listen on one interface, and nothing that a stranger writes is unpickled."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch
from torch.distributed import TCPStore

from rlhf.errors import TransferError
from rlhf.weight_sync import cuda
from rlhf.weight_sync.buckets import digest
from rlhf.weight_sync.gloo import GlooGroup
from rlhf.weight_sync.ipc import HandleExchange, IpcSource
from rlhf.weight_sync.types import Manifest
from tests.weight_sync.transports import at_once, rendezvous, results

NOTHING = Manifest(tensors=())


@contextmanager
def listening_afterwards() -> Iterator[set[str]]:
    """The addresses on which this process listens at the end, and did not at the beginning."""
    found: set[str] = set()
    before = listeners()
    yield found
    found |= {address for address, _ in listeners() - before}


def listeners() -> set[tuple[str, int]]:
    own = psutil.Process().net_connections(kind="tcp")
    return {(one.laddr.ip, one.laddr.port) for one in own if one.status == psutil.CONN_LISTEN}


class Bomb:
    """Unpickled, it leaves a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize("as_handle", [False, True], ids=["in place of an offer", "in place of its handle"])
def test_a_pickle_that_a_stranger_writes_is_refused_and_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_handle: bool
) -> None:
    meeting = rendezvous(2, backend="ipc", timeout_seconds=5)
    monkeypatch.setattr(cuda, "gpu_uuid", lambda: "A")
    learner = HandleExchange(meeting, hosts=True)
    learner.set("gpu/0", "A")
    engine = IpcSource(1, meeting)
    stranger = TCPStore("127.0.0.1", meeting.address.port, is_master=False, timeout=timedelta(seconds=5))
    bomb = pickle.dumps(Bomb(tmp_path / "trace"))
    offer = digest(NOTHING, meeting.bucket_bytes).hex().encode()
    stranger.set("0/open/1", offer + b" " + bomb if as_handle else bomb)  # type: ignore[arg-type]
    with pytest.raises(TransferError):
        next(engine.buckets(NOTHING))
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    "value", ["", "null", "{}", "[]", "[1]", json.dumps([1, 1, 0, 0, "zz", "", "", True]), json.dumps([None] * 8)]
)
def test_what_is_no_handle_is_refused_by_name(value: str) -> None:
    with pytest.raises(TransferError, match="is malformed"):
        cuda.opened_memory(value)


def test_nothing_of_a_group_listens_but_on_the_interface_where_it_meets() -> None:
    meeting = rendezvous(2)
    with listening_afterwards() as found:
        groups = results(at_once(*[lambda r=r: GlooGroup(r, meeting) for r in range(2)]))
        results(at_once(*[lambda g=g: (g.start_broadcast(torch.zeros(3)), g.finish_next()) for g in groups]))
    assert found == {"127.0.0.1"}
