"""Whether a head is still there, over real sockets."""

from __future__ import annotations

import socket
import time

import pytest

from rlhf.apps.deploy.node import REFUSALS, HeadWatch
from tests.pace import scaled


def test_a_head_that_listens_is_there_and_one_that_stops_is_gone_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        watch = HeadWatch(f"127.0.0.1:{listener.getsockname()[1]}")
        assert [watch.gone() for _ in range(5)] == [""] * 5
    began = time.monotonic()
    told = [watch.gone() for _ in range(REFUSALS)]
    assert told[-1] == "no process listens there any more"
    assert time.monotonic() - began < scaled(2)
    assert watch.gone() == told[-1], "gone is gone"


@pytest.mark.waits
def test_silence_is_borne_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog that is full answers neither yes nor no, as a cut link does."""
    monkeypatch.setattr("rlhf.apps.deploy.node.KNOCK_SECONDS", 0.2)
    monkeypatch.setattr("rlhf.apps.deploy.node.SILENCE_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(address)
        watch = HeadWatch(f"127.0.0.1:{address[1]}")
        assert watch.gone() == ""
        deadline = time.monotonic() + scaled(20)
        while not (told := watch.gone()) and time.monotonic() < deadline:
            pass
        for one in waiting:
            one.close()
    assert told.startswith("no answer for ")
