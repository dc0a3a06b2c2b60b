"""What one of vLLM's workers answers when a transfer fails: an exception would cost the engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlhf.errors import TransferError
from rlhf.weight_sync.types import Manifest

pytestmark = pytest.mark.engine
GONE = "a broadcast failed: a peer is gone"


def made_worker(**fails: Exception) -> Any:
    from rlhf.weight_sync.vllm_worker import WorkerExtension

    class Worker(WorkerExtension):
        weight_transfer_engine = SimpleNamespace(seconds={"receive": 2.0})

        def init_weight_transfer_engine(self, joining: dict[str, Any]) -> None:  # type: ignore[override]
            self.do("join")

        def start_weight_update(self) -> None:  # type: ignore[override]
            self.do("start")

        def update_weights(self, update: dict[str, Any]) -> None:  # type: ignore[override]
            self.do("update")

        def finish_weight_update(self) -> None:  # type: ignore[override]
            self.do("finish")

        def do(self, step: str) -> None:
            if step in fails:
                raise fails[step]

    return Worker()


def made_engine(*workers: Any) -> Any:
    from rlhf.engines.vllm.vllm_engine import VllmEngine

    def collective_rpc(method: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> list[Any]:
        return [getattr(worker, method)(*args, **(kwargs or {})) for worker in workers]

    engine: Any = object.__new__(VllmEngine)
    engine._engine, engine._adapters = SimpleNamespace(collective_rpc=collective_rpc), {}
    return engine


@pytest.mark.parametrize("step", ["start", "update", "finish"])
def test_a_transfer_that_failed_in_one_worker_is_its_answer_and_the_engines_error(step: str) -> None:
    worker = made_worker(**{step: TransferError(GONE)})
    assert worker.receive_update(Manifest(tensors=()), ()) == GONE
    with pytest.raises(TransferError, match=GONE):
        made_engine(made_worker(), worker).receive(Manifest(tensors=()))


def test_so_is_a_group_that_a_worker_cannot_join() -> None:
    with pytest.raises(TransferError, match=GONE):
        made_engine(made_worker(), made_worker(join=TransferError(GONE))).connect(None, 1)


def test_every_other_error_is_raised_and_a_whole_transfer_returns_its_seconds() -> None:
    with pytest.raises(ZeroDivisionError):
        made_worker(update=ZeroDivisionError()).receive_update(Manifest(tensors=()), ())
    assert made_engine(made_worker(), made_worker()).receive(Manifest(tensors=())) == {"receive": 2.0}
