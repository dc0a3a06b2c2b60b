"""The desk over which handles of shared memory travel."""

from __future__ import annotations

import time

import pytest

from rlhf.errors import TransferError
from rlhf.transfer.handles import HandleDesk
from rlhf.types import Rendezvous
from tests.transfer.meeting import at_once, rendezvous, results


def desks(meeting: Rendezvous) -> list[HandleDesk]:
    return results(at_once(*[lambda r=r: HandleDesk(r, meeting) for r in range(meeting.world_size)]))


def test_every_engine_takes_every_update_of_every_publish() -> None:
    learner, *engines = desks(rendezvous(3, backend="ipc"))

    def offer() -> None:
        for chunk in range(3):
            learner.offer({"names": [f"{chunk}"]})
        learner.end()

    for _ in range(2):
        _, *taken = results(at_once(offer, *[lambda e=e: list(e.updates()) for e in engines]))
        assert taken == [[{"names": [f"{chunk}"]} for chunk in range(3)]] * 2


def test_an_update_is_taken_only_when_all_have_loaded_it() -> None:
    learner, *engines = desks(rendezvous(2, backend="ipc", timeout_seconds=20))
    loaded: list[float] = []

    def load() -> None:
        for _ in engines[0].updates():
            time.sleep(0.1)
            loaded.append(time.monotonic())

    def offer() -> float:
        learner.offer({"names": []})
        offered = time.monotonic()
        learner.end()
        return offered

    offered, _ = results(at_once(offer, load))
    assert offered >= loaded[0]


@pytest.mark.waits
def test_an_engine_that_does_not_take_is_given_up_in_time() -> None:
    learner, _ = desks(rendezvous(2, backend="ipc", timeout_seconds=1))
    with pytest.raises(TransferError, match="did not come within 1 s"):
        learner.offer({"names": []})
