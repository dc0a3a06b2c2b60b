"""A reward model's scores come in batches, and whatever is no score has a name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from rlhf.cluster.restarts import STARTS, Restarts
from rlhf.config import build
from rlhf.errors import ConfigError, DeadlinePassed, ModelError, WorkerDied, WorkerFailed
from rlhf.reward.config import RewardConfig
from rlhf.reward.model import ModelReward
from rlhf.reward.model_worker import RewardModelFacts, RewardModelSettings, batches, padded
from rlhf.types import EpisodeStatus, Scored, Segment, Task, TokenKind, Trajectory, Unscored
from tests.pace import scaled
from tests.trainer.made import made_segment

TASK = Task(id="t", messages=())


class FakeWorker:
    """Scores a sequence with its last token; the batches it was asked are kept."""

    name = "reward-0"

    def __init__(
        self, *, fails: Exception | None = None, scores: Sequence[float] | None = None, starts: bool = True
    ) -> None:
        self.fails, self.scores, self.starts = fails, scores, starts
        self.asked: list[list[int]] = []
        self.go = asyncio.Event()
        self.go.set()

    async def call(self, method: str, *arguments: Any, timeout_seconds: float) -> Any:
        if method == "start":
            if not self.starts:
                raise ModelError("model.path=m: gone")
            return RewardModelFacts(context_tokens=50, vocab_size=250)
        (sequences,) = arguments
        self.asked.append([int(one.token_ids[-1]) for one in sequences])
        await asyncio.sleep(0)
        await self.go.wait()
        if self.fails:
            raise self.fails
        return list(self.scores or map(float, self.asked[-1]))


def trajectory(last: int, length: int = 10, actions: int = 3) -> Trajectory:
    segment = made_segment(np.random.default_rng(0), length - actions, actions)
    segment.token_ids[-1] = last
    return Trajectory(task=TASK, segments=(segment,), status=EpisodeStatus.TERMINATED)


async def started(*workers: FakeWorker, tokens_per_batch: int = 1000, restarts: Restarts | None = None) -> ModelReward:
    settings = RewardModelSettings(model="m", policy="p", tokens_per_batch=tokens_per_batch)
    reward = ModelReward(workers, settings, timeout_seconds=5, start_timeout_seconds=5, restarts=restarts)
    await reward.start()
    return reward


async def test_a_group_is_one_call_and_every_answer_finds_its_trajectory() -> None:
    worker = FakeWorker()
    reward = await started(worker)
    scores = await reward(TASK, [trajectory(last) for last in (7, 9, 8)])
    assert scores == [Scored(value=value, parts={"model": value}) for value in (7.0, 9.0, 8.0)]
    assert worker.asked == [[7, 9, 8]]


async def test_what_waits_while_the_worker_is_busy_goes_together_up_to_the_budget() -> None:
    worker = FakeWorker()
    worker.go.clear()
    reward = await started(worker, tokens_per_batch=30)
    groups = [asyncio.ensure_future(reward(TASK, [trajectory(10 * group + n) for n in (1, 2)])) for group in range(4)]
    while not worker.asked:
        await asyncio.sleep(0)
    assert worker.asked == [[1, 2, 11]], "three sequences of 10 tokens fill the budget"
    worker.go.set()
    scores = [[score.value for score in group] for group in await asyncio.gather(*groups)]
    assert scores == [[10.0 * group + n for n in (1, 2)] for group in range(4)]
    assert worker.asked == [[1, 2, 11], [12, 21, 22], [31, 32]]


async def test_workers_share_what_waits() -> None:
    first, second = FakeWorker(), FakeWorker()
    reward = await started(first, second, tokens_per_batch=10)
    await reward(TASK, [trajectory(last) for last in (1, 2, 3, 4)])
    assert sorted(token for batch in first.asked + second.asked for token in batch) == [1, 2, 3, 4]
    assert first.asked
    assert second.asked


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
async def test_a_score_that_is_not_finite_is_no_number_and_harms_no_other(value: float) -> None:
    reward = await started(FakeWorker(scores=[1.0, value]))
    good, bad = await reward(TASK, [trajectory(1), trajectory(2)])
    assert good == Scored(value=1.0, parts={"model": 1.0})
    assert isinstance(bad, Unscored)
    assert bad.kind == "not finite"


@pytest.mark.parametrize(
    ("one", "kind"),
    [(trajectory(5, actions=0), "empty"), (trajectory(5, length=60), "too long"), (trajectory(250), "unknown token")],
)
async def test_what_a_model_cannot_read_is_unscored_without_being_asked(one: Trajectory, kind: str) -> None:
    worker = FakeWorker()
    reward = await started(worker)
    (score,) = await reward(TASK, [one])
    assert isinstance(score, Unscored)
    assert score.kind == kind
    assert worker.asked == []


async def test_a_response_that_is_all_tool_output_is_empty() -> None:
    segment = trajectory(5).segments[0]
    kinds = np.where(segment.action_mask, TokenKind.ENV, segment.kinds).astype(np.int8)
    tool = Segment(
        token_ids=segment.token_ids,
        kinds=kinds,
        behaviour_logprobs=segment.behaviour_logprobs,
        versions=segment.versions,
    )
    (score,) = await (await started(FakeWorker()))(
        TASK, [Trajectory(task=TASK, segments=(tool,), status=EpisodeStatus.TERMINATED)]
    )
    assert score == Unscored(kind="empty", detail="the reply is empty")


async def test_the_last_segment_is_what_is_scored() -> None:
    first, last = trajectory(1).segments[0], trajectory(2).segments[0]
    (score,) = await (await started(FakeWorker()))(
        TASK, [Trajectory(task=TASK, segments=(first, last), status=EpisodeStatus.TERMINATED)]
    )
    assert score == Scored(value=2.0, parts={"model": 2.0})


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (DeadlinePassed("reward-0.score", 5), "timeout"),
        (WorkerFailed("reward-0", "score", "RuntimeError: no memory"), "raised"),
    ],
)
async def test_a_call_that_broke_gives_no_number(failure: Exception, kind: str) -> None:
    (score,) = await (await started(FakeWorker(fails=failure)))(TASK, [trajectory(1)])
    assert isinstance(score, Unscored)
    assert score.kind == kind


async def test_a_dead_worker_is_an_error_with_its_name_for_everyone_who_waits() -> None:
    reward = await started(FakeWorker(fails=WorkerDied("reward-0", "killed by SIGKILL")), tokens_per_batch=10)
    outcomes = await asyncio.wait_for(
        asyncio.gather(*(reward(TASK, [trajectory(n)]) for n in (1, 2)), return_exceptions=True), 5
    )
    assert [str(outcome) for outcome in outcomes] == ["reward-0 died: killed by SIGKILL"] * 2


class Cluster:
    """Gives these workers, one for each that died, and keeps which those were."""

    def __init__(self, *workers: FakeWorker) -> None:
        self.left, self.died, self.told = list(workers), list[FakeWorker](), list[str]()
        self.restarts = Restarts(cast(Any, self), self.told.append)

    async def replace(self, worker: FakeWorker) -> FakeWorker:
        self.died.append(worker)
        return self.left.pop(0)

    async def remove(self, worker: FakeWorker) -> None: ...


def dead() -> FakeWorker:
    return FakeWorker(fails=WorkerDied("reward-0", "killed by SIGKILL"))


async def test_another_worker_scores_what_one_that_died_was_asked() -> None:
    first, second = dead(), FakeWorker()
    cluster = Cluster(second)
    reward = await started(first, restarts=cluster.restarts)
    assert await reward(TASK, [trajectory(7), trajectory(8)]) == [
        Scored(value=value, parts={"model": value}) for value in (7.0, 8.0)
    ]
    await reward(TASK, [trajectory(9)])
    assert (first.asked, second.asked, cluster.died) == ([[7, 8]], [[7, 8], [9]], [first])
    assert cluster.told[0] == "reward-0 died: killed by SIGKILL; starting a replacement"


async def test_sequences_that_end_one_worker_after_the_other_end_the_run_by_name() -> None:
    cluster = Cluster(*(dead() for _ in range(STARTS)))
    reward = await started(dead(), restarts=cluster.restarts)
    with pytest.raises(WorkerDied, match=r"^reward-0 died: killed by SIGKILL$"):
        await asyncio.wait_for(reward(TASK, [trajectory(1)]), 5)
    assert len(cluster.died) == STARTS


async def test_a_place_where_no_worker_starts_ends_the_run_by_name() -> None:
    cluster = Cluster(*(FakeWorker(starts=False) for _ in range(STARTS)))
    reward = await started(dead(), restarts=cluster.restarts)
    with pytest.raises(WorkerDied, match=r"killed by SIGKILL; 3 starts of a replacement failed: model\.path=m: gone"):
        await asyncio.wait_for(reward(TASK, [trajectory(1)]), 5)


async def test_an_error_of_the_program_reaches_everyone_who_waits() -> None:
    reward = await started(FakeWorker(fails=KeyError("bug")))
    with pytest.raises(KeyError, match="bug"):
        await asyncio.wait_for(reward(TASK, [trajectory(1)]), 5)


async def test_one_that_gives_up_waiting_disturbs_nobody() -> None:
    worker = FakeWorker()
    worker.go.clear()
    reward = await started(worker, tokens_per_batch=10)
    leaving, waiting, staying = (asyncio.ensure_future(reward(TASK, [trajectory(n)])) for n in (1, 2, 3))
    await asyncio.sleep(0.01)
    leaving.cancel()
    waiting.cancel()
    worker.go.set()
    assert await asyncio.wait_for(staying, scaled(5)) == [Scored(value=3.0, parts={"model": 3.0})]
    assert worker.asked == [[1], [3]]


async def test_close_ends_whoever_waits() -> None:
    worker = FakeWorker()
    worker.go.clear()
    reward = await started(worker)
    waiting = asyncio.ensure_future(reward(TASK, [trajectory(1)]))
    await asyncio.sleep(0.01)
    await reward.close()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, scaled(5))


def test_batches_hold_every_sequence_once_within_the_budget() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, 200).tolist()
    made = batches(lengths, 100)
    assert sorted(place for batch in made for place in batch) == list(range(200))
    for batch in made:
        assert len(batch) == 1 or max(lengths[place] for place in batch) * len(batch) <= 100
    assert batches([300, 2], 100) == [[0], [1]]


def test_padding_comes_after_the_token_that_is_scored() -> None:
    token_ids, position_ids, ends = padded([np.array([5, 6, 7], np.int32), np.array([8], np.int32)])
    assert token_ids.flatten()[ends].tolist() == [7, 8]
    assert position_ids.tolist() == [[0, 1, 2], [0, 0, 0]]


@pytest.mark.parametrize("values", [{"kind": "model"}, {"kind": "exact", "model": "folder"}])
def test_kind_model_and_its_folder_come_together(values: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"reward\.model and kind: model belong together"):
        build(RewardConfig, values)
