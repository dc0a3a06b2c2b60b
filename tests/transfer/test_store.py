"""Where members meet: what a stranger who reaches the port can write is not read, and other interfaces have no port."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch
from torch.distributed import TCPStore

from rlhf.errors import TransferError
from rlhf.transfer.gloo_group import GlooGroup
from rlhf.transfer.handles import HandleExchange
from rlhf.transfer.store import open_store
from rlhf.transfer.types import Rendezvous
from tests.transfer.meeting import SECRET, at_once, rendezvous, results


def stranger(meeting: Rendezvous) -> TCPStore:
    """A client that knows the address and nothing else."""
    return TCPStore(meeting.address, meeting.port, is_master=False, timeout=timedelta(seconds=5))


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


def test_a_pickle_of_a_stranger_is_refused_and_never_opened(tmp_path: Path) -> None:
    meeting = rendezvous(2, backend="ipc")
    learner, engine = results(at_once(*[lambda h=h: HandleExchange(meeting, hosts=h) for h in (True, False)]))
    rogue = stranger(meeting)
    for key in ("0/open/1", "0/0/filled/0"):
        rogue.set(key, pickle.dumps(Bomb(tmp_path / "trace")))  # type: ignore[arg-type]
    with pytest.raises(TransferError, match="written by a stranger"):
        engine.opening(1)
    with pytest.raises(TransferError, match="written by a stranger"):
        engine.wait_filled(0, 0)
    assert not (tmp_path / "trace").exists()
    del learner


@pytest.mark.parametrize(
    "value", [b"", b"x", b"\x80\x04.", b"\0" * 32, b"\0" * 31, b"{}", b"null", b'{"chunk": null}', b"\xff" * 500]
)
def test_what_a_stranger_writes_is_never_a_value(value: bytes) -> None:
    meeting = rendezvous(1)
    store = open_store(0, meeting.address, meeting.port, SECRET, 5)
    stranger(meeting).set("key", value)  # type: ignore[arg-type]
    with pytest.raises(TransferError, match="written by a stranger"):
        store.get("key")


def test_a_value_of_another_key_or_another_run_is_no_value() -> None:
    meeting = rendezvous(1)
    store = open_store(0, meeting.address, meeting.port, SECRET, 5)
    store.set("one", b"the right value")
    rogue = stranger(meeting)
    rogue.set("other", rogue.get("one"))
    with pytest.raises(TransferError, match="written by a stranger"):
        store.get("other")
    open_store(1, meeting.address, meeting.port, "of another run", 5).set("one", "wrong")
    with pytest.raises(TransferError, match="written by a stranger"):
        store.get("one")
    with pytest.raises(TransferError, match="without a secret"):
        open_store(1, meeting.address, meeting.port, "", 5)


def test_a_member_is_not_led_to_the_address_that_a_stranger_wrote() -> None:
    meeting = rendezvous(2, timeout_seconds=3)
    host = open_store(0, meeting.address, meeting.port, SECRET, 3)
    rogue = stranger(meeting)
    for key in ("0/0", "0/1", "rank_0", "rank_1"):
        rogue.set(key, b"\0" * 200)  # type: ignore[arg-type]
    with pytest.raises(TransferError, match="written by a stranger"):
        GlooGroup(1, meeting)
    del host


def test_nothing_of_a_group_listens_but_on_the_interface_where_it_meets() -> None:
    meeting = rendezvous(2)
    with listening_afterwards() as found:
        groups = results(at_once(*[lambda r=r: GlooGroup(r, meeting) for r in range(2)]))
        results(at_once(*[lambda g=g: (g.start_broadcast(torch.zeros(3)), g.finish_next()) for g in groups]))
    assert found == {"127.0.0.1"}


def test_a_secret_is_in_no_text_of_the_meeting() -> None:
    assert SECRET not in repr(rendezvous(2))


def test_a_store_of_its_own_listens_on_every_interface_of_which_ours_is_one() -> None:
    """What torch does by default, and why a socket is made here."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with listening_afterwards() as found:
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    assert found & {"::", "0.0.0.0"}
    del store
