"""The controller's side of an engine, over a worker that keeps what it is asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlhf.engines.config import RolloutConfig
from rlhf.engines.engine import SETTLED_AT_ONCE, RemoteEngine
from rlhf.engines.router import Router
from rlhf.engines.vllm.settings import GenerateRequest, RefusedRequest
from rlhf.errors import DeadlinePassed, EngineBroken, GenerateFailed, WeightSyncError, WorkerDied
from rlhf.types import Completion, FinishReason, Prompt, Sampling
from rlhf.weight_sync.types import GroupAddress, Manifest, Rendezvous, TensorSpec

Reply = Completion | RefusedRequest


def echo(request: GenerateRequest) -> Reply:
    length = len(request.token_ids)
    return completion(request.token_ids, np.full(length, 7, np.int32))


def completion(token_ids: np.ndarray, versions: np.ndarray, reason: FinishReason = FinishReason.STOP) -> Completion:
    return Completion(
        token_ids=token_ids, behaviour_logprobs=np.zeros(len(token_ids), np.float32), versions=versions,
        finish_reason=reason, engine="engine-0",
    )  # fmt: skip


class FakeWorker:
    """Answers requests by `answer` (None: not at all), and writes down every call."""

    name = "engine-0"

    def __init__(self, answer: Callable[[GenerateRequest], Reply | None] = echo) -> None:
        self.answer = answer
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.replies: asyncio.Queue[tuple[str, Reply]] = asyncio.Queue()
        self.dead: WorkerDied | None = None
        self.take = asyncio.Event()
        self.take.set()

    async def call(self, method: str, *args: Any, timeout_seconds: float, **kwargs: Any) -> Any:
        self.calls.append((method, args))
        if self.dead:
            raise self.dead
        if method == "submit":
            await self.take.wait()
            for request in args[0]:
                if reply := self.answer(request):
                    self.replies.put_nowait((request.id, reply))
        return await self._collect(args[0]) if method == "collect" else None

    async def _collect(self, seconds: float) -> list[tuple[str, Reply]]:
        try:
            replies = [await asyncio.wait_for(self.replies.get(), seconds)]
        except TimeoutError:
            return []
        while not self.replies.empty():
            replies.append(self.replies.get_nowait())
        return replies

    def batches(self) -> list[int]:
        return [len(args[0]) for method, args in self.calls if method == "submit"]


def ask(engine: RemoteEngine, token: int, session: str = "s") -> asyncio.Task[Completion]:
    prompt = Prompt(token_ids=np.array([token], dtype=np.int32))
    return asyncio.create_task(engine.generate(prompt, sampling=Sampling(), seed=0, session=session))


async def test_the_requests_of_one_tick_travel_together_and_each_gets_its_own_reply() -> None:
    worker = FakeWorker()
    engine = RemoteEngine(worker, RolloutConfig())
    completions = await asyncio.gather(*(ask(engine, token) for token in range(100)))
    assert worker.batches() == [100]
    assert [int(completion.token_ids[0]) for completion in completions] == list(range(100))
    assert {completion.engine for completion in completions} == {"engine-0"}
    assert completions[0].versions.tolist() == [7]
    assert sum(method == "collect" for method, _ in worker.calls) == 1


async def test_requests_that_come_while_others_are_sent_travel_together() -> None:
    worker = FakeWorker()
    engine = RemoteEngine(worker, RolloutConfig())
    worker.take.clear()
    asked = []
    for token in range(5):
        asked.append(ask(engine, token))
        await asyncio.sleep(0.001)
    worker.take.set()
    await asyncio.gather(*asked)
    assert worker.batches() == [1, 4]


async def test_other_work_goes_on_while_many_episodes_get_their_replies() -> None:
    engine, turns = RemoteEngine(FakeWorker(), RolloutConfig()), []
    asked = [ask(engine, token) for token in range(100)]
    for one in asked:
        one.add_done_callback(lambda done: turns.append(turn))
    turn = 0
    while len(turns) < len(asked):
        await asyncio.sleep(0)
        turn += 1
    assert max(Counter(turns).values()) <= SETTLED_AT_ONCE


async def test_nothing_is_asked_of_the_worker_when_nobody_waits() -> None:
    worker = FakeWorker()
    engine = RemoteEngine(worker, RolloutConfig())
    await ask(engine, 1)
    await asyncio.sleep(0)
    count = len(worker.calls)
    await asyncio.sleep(0.05)
    assert len(worker.calls) == count
    await ask(engine, 2)


async def test_a_refused_request_names_engine_session_and_reason_and_harms_no_other() -> None:
    engine = RemoteEngine(
        FakeWorker(lambda r: RefusedRequest("too long") if r.token_ids[0] == 1 else echo(r)), RolloutConfig()
    )
    refused, answered = ask(engine, 1, session="train-3-0"), ask(engine, 2)
    with pytest.raises(GenerateFailed, match="engine-0 could not answer session train-3-0: too long"):
        await refused
    assert (await answered).token_ids.tolist() == [2]


async def test_a_broken_engine_is_another_error_than_a_bad_request() -> None:
    engine = RemoteEngine(FakeWorker(lambda request: RefusedRequest("a step failed", broken=True)), RolloutConfig())
    with pytest.raises(
        EngineBroken, match="engine-0 is in an unknown state and was taken out of service: a step failed"
    ):
        await ask(engine, 1)


class SlowWorker(FakeWorker):
    """Answers nothing, until it is told to cut a request off: then with `said` tokens."""

    def __init__(self, said: int = 3) -> None:
        super().__init__(lambda request: None)
        self._said = said

    async def call(self, method: str, *args: Any, timeout_seconds: float, **kwargs: Any) -> Any:
        if method == "cut_off":
            for request_id in args[0]:
                request = GenerateRequest(request_id, np.full(self._said, 5, np.int32), 1, 1, 0)
                self.replies.put_nowait((request.id, replace(echo(request), finish_reason=FinishReason.TIME)))
        return await super().call(method, *args, timeout_seconds=timeout_seconds, **kwargs)


async def test_a_reply_that_passes_its_time_is_cut_off_and_has_what_was_said_so_far() -> None:
    worker = SlowWorker()
    completion = await ask(RemoteEngine(worker, RolloutConfig(generate_timeout_seconds=0.05)), 1)
    assert completion.token_ids.tolist() == [5, 5, 5]
    assert completion.finish_reason is FinishReason.TIME
    assert "abort" not in [method for method, _ in worker.calls], "it has ended"


async def test_a_reply_may_have_less_time_than_the_engine_would_give_it() -> None:
    engine = RemoteEngine(SlowWorker(), RolloutConfig(generate_timeout_seconds=60))
    prompt, sampling = Prompt(token_ids=np.array([1], np.int32)), Sampling(max_seconds=0.05)
    async with asyncio.timeout(5):
        completion = await engine.generate(prompt, sampling=sampling, seed=0, session="s")
    assert completion.finish_reason is FinishReason.TIME


async def test_the_pause_of_a_publish_is_not_charged_to_a_reply() -> None:
    worker = SlowWorker()
    engine = RemoteEngine(worker, RolloutConfig(generate_timeout_seconds=0.1))
    waiting = ask(engine, 1)
    await asyncio.sleep(0.02)
    await engine.prepare(Manifest(tensors=()))
    await asyncio.sleep(0.3)
    assert "cut_off" not in [method for method, _ in worker.calls]
    await engine.resume()
    await asyncio.sleep(0.03)
    assert "cut_off" not in [method for method, _ in worker.calls], "it goes on where it stood"
    assert (await waiting).finish_reason is FinishReason.TIME


@pytest.mark.parametrize("worker", [SlowWorker(said=0), FakeWorker(lambda request: None)], ids=["nothing", "silent"])
async def test_a_request_of_which_nothing_comes_passes_its_deadline_by_name(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf.engines.engine.CALL_SECONDS", 0.05)
    engine = RemoteEngine(worker, RolloutConfig(generate_timeout_seconds=0.05))
    with pytest.raises(DeadlinePassed, match=r"engine-0 \(session train-1-2\) did not answer within 0\.05 s"):
        await ask(engine, 1, session="train-1-2")


async def test_the_deadline_counts_from_when_the_engine_has_the_request() -> None:
    worker = FakeWorker()
    worker.take.clear()
    engine = RemoteEngine(worker, RolloutConfig(generate_timeout_seconds=0.05))
    waiting = ask(engine, 1)
    await asyncio.sleep(0.15)
    assert not waiting.done()
    worker.take.set()
    await waiting


async def test_a_request_that_is_cancelled_is_given_up_on_the_engine() -> None:
    worker = FakeWorker(lambda request: None)
    engine = RemoteEngine(worker, RolloutConfig())
    waiting = ask(engine, 1, session="gone")
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.sleep(0.01)
    assert ("abort", (["gone/0"],)) in worker.calls
    await engine.stop()


async def test_a_reply_in_the_tick_of_its_cancellation_harms_no_other() -> None:
    worker = FakeWorker(lambda request: None)
    engine = RemoteEngine(worker, RolloutConfig())
    waiting, other = ask(engine, 1, session="gone"), ask(engine, 2, session="other")
    await asyncio.sleep(0.01)
    waiting.cancel()  # its future ends now, and its request is given up one tick later
    engine._settle("gone/0", completion(np.ones(1, np.int32), np.zeros(1, np.int32)))
    worker.replies.put_nowait(("other/1", completion(np.array([2], np.int32), np.zeros(1, np.int32))))
    assert (await other).token_ids.tolist() == [2]
    assert waiting.cancelled()


async def test_a_worker_that_died_fails_all_that_wait_and_all_that_come() -> None:
    worker = FakeWorker(lambda request: None)
    engine = RemoteEngine(worker, RolloutConfig())
    waiting = [ask(engine, token) for token in range(3)]
    await asyncio.sleep(0.01)
    worker.dead = WorkerDied("engine-0", "killed by SIGKILL")
    worker.replies.put_nowait(("unknown", completion(np.zeros(1, np.int32), np.zeros(1, np.int32))))
    for task in waiting:
        with pytest.raises(WorkerDied, match="engine-0 died"):
            await task
    with pytest.raises(WorkerDied, match="engine-0 died"):
        await ask(engine, 9)


async def test_stopping_gives_up_what_is_under_way() -> None:
    worker = FakeWorker(lambda request: None)
    engine = RemoteEngine(worker, RolloutConfig())
    waiting = ask(engine, 1)
    await asyncio.sleep(0.01)
    await engine.stop()
    with pytest.raises(EngineBroken, match="it was stopped"):
        await waiting
    assert worker.calls[-1] == ("close", ())


async def test_a_publish_asks_the_phases_of_the_worker() -> None:
    worker = FakeWorker()
    engine = RemoteEngine(worker, RolloutConfig(), transfer_ranks=2)
    manifest = Manifest(tensors=(TensorSpec(name="norm.weight", dtype="float32", shape=(4,)),))
    meeting = Rendezvous(backend="gloo", address=GroupAddress(host="::1", port=1), world_size=3, timeout_seconds=1)
    await engine.connect(meeting, 1)
    await engine.prepare(manifest)
    await engine.receive(manifest)
    await engine.commit(4)
    await engine.resume()
    assert [method for method, _ in worker.calls] == ["connect", "prepare", "receive", "commit", "resume"]
    assert worker.calls[0][1] == (meeting, 1)
    assert worker.calls[1][1] == worker.calls[2][1] == (manifest,)
    assert worker.calls[3][1] == (4,)


async def test_the_requests_of_an_engine_that_a_weight_sync_lost_go_on_elsewhere() -> None:
    lost, other = RemoteEngine(FakeWorker(lambda request: None), RolloutConfig()), FakeWorker()
    other.name = "engine-1"
    router = Router([lost, RemoteEngine(other, RolloutConfig())])
    prompt = Prompt(token_ids=np.array([1], dtype=np.int32))
    waiting = asyncio.create_task(router.generate(prompt, sampling=Sampling(), seed=0, session="s"))
    await asyncio.sleep(0.01)
    lost.lose(WeightSyncError("engine-0", "canary", 3, "it is stale", ["engine-0"]))
    assert (await waiting).token_ids.tolist() == [1]
    with pytest.raises(EngineBroken, match="it is stale"):
        await ask(lost, 1)
