import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from rlhf.errors import DeadlinePassed, RanksHang, WorkerDied, WorkerFailed
from rlhf.trainer import learner as learner_module
from rlhf.trainer.batching.batch import places_of
from rlhf.trainer.config import DeepSpeedConfig, TrainerConfig
from rlhf.trainer.credit.estimators import group_relative
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.rank import learner_worker
from rlhf.trainer.rank.learner_worker import LearnerWorker
from rlhf.trainer.rank_answers import RankAnswer
from rlhf.types import Group
from rlhf.weight_sync.types import GroupAddress
from tests.trainer.credit.made import scored
from tests.trainer.made import made_groups, without_score


class EchoWorker:
    """Answers an update with each token's place as its log-prob, or fails as it is told to."""

    def __init__(self, name: str, error: Exception | None = None, delay_seconds: float = 0.0) -> None:
        self.name, self.error, self.delay_seconds = name, error, delay_seconds
        self.calls: list[str] = []
        self.sent: list[tuple[Any, ...]] = []

    async def call(self, method: str, *arguments: Any, timeout_seconds: float, **_: Any) -> Any:
        self.calls.append(method)
        self.sent.append(arguments)
        await asyncio.sleep(self.delay_seconds)
        if self.error:
            raise self.error
        if method == "group_address":
            return GroupAddress(host="127.0.0.1", port=5000)
        if arguments[0]:
            self.part = arguments[0]
        places = places_of(self.part)
        if method == "policy.forward_outputs":
            return {name: places.astype(np.float32) for name in arguments[1]}
        own = places.astype(np.float32)
        return RankAnswer(sums={}, maxima={}, steps={}, places=places, proximal_logprobs=-own, entropies=own)


def remote(*workers: EchoWorker, **changes: Any) -> RemoteLearner:
    config = TrainerConfig(groups_per_update=4, minibatches=2, tokens_per_microbatch=64, **changes)
    return RemoteLearner(workers, config)


def unscored(group: Group) -> Group:
    for index in range(len(group.samples)):
        group = without_score(group, index)
    return group


async def test_an_update_is_one_call_a_rank_and_every_log_prob_finds_its_sample() -> None:
    workers = [EchoWorker("learner-0"), EchoWorker("learner-1")]
    groups = made_groups(4)
    learner = remote(*workers)
    updated = await learner.update(groups)
    assert [worker.calls for worker in workers] == [["policy.update"], ["policy.update"]]
    assert learner.version == 1
    found = np.concatenate([trained.proximal_logprobs for trained in updated.samples])
    np.testing.assert_array_equal(found, -np.arange(len(found), dtype=np.float32))
    rewards = [[score.value for _, _, score in group.trainable] for group in groups]
    by_hand = [value for group in rewards for value in group_relative(scored(group), normalize_by_std=True)]
    assert [float(trained.advantages[0]) for trained in updated.samples] == pytest.approx(by_hand)


async def test_the_event_loop_goes_on_while_a_batch_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    went_on, packs = threading.Event(), learner_module.build_batch

    def packing(*groups: Any, **settings: Any) -> Any:
        assert went_on.wait(10), "the loop stood still"
        return packs(*groups, **settings)

    monkeypatch.setattr(learner_module, "build_batch", packing)
    asyncio.get_running_loop().call_later(0.01, went_on.set)
    await remote(EchoWorker("learner-0")).update(made_groups(4))


async def test_ranks_that_are_asked_first_get_nothing_twice() -> None:
    workers = [EchoWorker("learner-0"), EchoWorker("learner-1")]
    groups = made_groups(4)
    updated = await remote(*workers, proximal_logprobs="recomputed").update(groups)
    assert [worker.calls for worker in workers] == [["policy.forward_outputs", "policy.update"]] * 2
    plain = await remote(EchoWorker("learner-0")).update(groups)
    for one, other in zip(updated.samples, plain.samples, strict=True):
        np.testing.assert_array_equal(one.advantages, other.advantages)
    flat = np.concatenate([one.advantages for one in updated.samples])
    for worker in workers:
        part, columns, _ = worker.sent[1]
        assert part is None
        assert columns.keys() == {"advantages"}
        np.testing.assert_array_equal(columns["advantages"], flat[places_of(worker.part)])


async def test_groups_without_a_single_score_are_an_update_without_a_step() -> None:
    worker = EchoWorker("learner-0")
    learner = remote(worker)
    updated = await learner.update([unscored(group) for group in made_groups(4)])
    assert worker.calls == []
    assert updated.samples == ()
    assert learner.version == 1


async def test_a_dead_rank_is_named_even_when_the_others_complain_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_module, "DEATH_GRACE_SECONDS", 0.5)
    complaining = EchoWorker("learner-0", WorkerFailed("learner-0", "update", "connection closed by peer"))
    dead = EchoWorker("learner-1", WorkerDied("learner-1", "killed by SIGKILL"), delay_seconds=0.05)
    with pytest.raises(WorkerDied, match="learner-1 died: killed by SIGKILL"):
        await remote(complaining, dead).update(made_groups(4))


async def test_when_ranks_are_late_the_error_says_where_each_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_module, "DEATH_GRACE_SECONDS", 0.05)

    class Late(EchoWorker):
        async def call(self, method: str, *arguments: Any, timeout_seconds: float, **_: Any) -> Any:
            if method == "whereabouts" and self.name == "learner-0":
                return "is in backward at `engine.backward(loss)` (zero.py:137)"
            raise DeadlinePassed(f"{self.name}.{method}", timeout_seconds)

    with pytest.raises(RanksHang) as caught:
        await remote(Late("learner-0"), Late("learner-1")).update(made_groups(4))
    assert str(caught.value) == (
        "policy.update of the ranks did not answer within 600 s: learner-1 does not answer (stopped, or its node is "
        "gone), learner-0 is in backward at `engine.backward(loss)` (zero.py:137)"
    )


def test_a_rank_says_where_its_thread_is_while_that_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()

    def blocks() -> str:
        entered.set()
        leave.wait(60)
        return "127.0.0.1"

    monkeypatch.setattr(learner_worker, "own_address", blocks)
    worker = LearnerWorker()
    assert asyncio.run(worker.whereabouts()) == "has nothing to do"
    thread = threading.Thread(target=worker.group_address)
    thread.start()
    assert entered.wait(60)
    assert asyncio.run(worker.whereabouts()).startswith(
        "is in group_address at `host = LOOPBACK if self._loopback else own_address()` (learner_worker.py:"
    )
    leave.set()
    thread.join()


async def test_a_rank_that_fails_does_not_wait_for_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_module, "DEATH_GRACE_SECONDS", 0.05)
    hanging = EchoWorker("learner-1", delay_seconds=60)
    failing = EchoWorker("learner-0", WorkerFailed("learner-0", "update", "out of memory"))
    with pytest.raises(WorkerFailed, match="out of memory"):
        await asyncio.wait_for(remote(failing, hanging).update(made_groups(4)), 5)


async def test_the_transfer_group_meets_at_rank_0_with_the_recipe_s_buckets() -> None:
    rendezvous = await remote(EchoWorker("learner-0"), EchoWorker("learner-1")).rendezvous(3)
    assert (rendezvous.address, rendezvous.world_size) == (GroupAddress(host="127.0.0.1", port=5000), 3)
    assert rendezvous.bucket_bytes == 32 * 2**20


class ScoringWorker:
    """A rank whose log-probs are its tokens, plus the experts that it was told."""

    def __init__(self, name: str) -> None:
        self.name, self.rows = name, 0

    async def call(self, method: str, *arguments: Any, timeout_seconds: float, rounded: bool) -> Any:
        tokens, routing, _ = arguments
        assert method == "policy.token_logprobs"
        self.rows += len(tokens)
        chosen = 0 if routing is None else routing[:, :1, 0, 0]
        return (tokens[:, 1:] + chosen + (0.5 if rounded else 0)).astype(np.float32)


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize(
    ("ranks", "rows", "sharing", "each"), [(1, 4, 1, 4), (2, 4, 1, 2), (3, 4, 1, 2), (8, 3, 1, 1), (4, 4, 2, 2)]
)
async def test_ranks_share_the_rows_of_a_canary_and_all_compute_as_many(
    ranks: int, rows: int, sharing: int, each: int, experts: bool
) -> None:
    workers = [ScoringWorker(f"learner-{n}") for n in range(ranks)]
    learner = remote(*workers, deepspeed=DeepSpeedConfig(ranks=ranks, sequence_parallel=sharing))  # type: ignore[arg-type]
    tokens = np.arange(rows * 5, dtype=np.int32).reshape(rows, 5)
    routing = 100 * np.arange(rows, dtype=np.int16).reshape(rows, 1, 1, 1) if experts else None
    expected = tokens[:, 1:] + (100 * np.arange(rows)[:, None] if experts else 0)
    np.testing.assert_array_equal(await learner.token_logprobs(tokens, routing), expected)
    assert [worker.rows for worker in workers] == [each] * ranks
    np.testing.assert_array_equal(await learner.rounded_logprobs(tokens, routing), expected + 0.5)
    np.testing.assert_array_equal(await learner.token_logprobs(tokens[0]), tokens[0, 1:])
