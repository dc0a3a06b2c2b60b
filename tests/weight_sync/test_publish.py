"""A publish as a transaction over fakes: phases in order, and a named end, in time, for whatever goes wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest

from rlhf.errors import EnginesLost, ModelError, RlhfError, TransferError, WeightSyncError, WorkerDied
from rlhf.tracing import CURRENT, Clock, CurrentSpan
from rlhf.types import Completion, FinishReason, TokenLogprobs
from rlhf.weight_sync.canary import Canary
from rlhf.weight_sync.publish import Publisher
from rlhf.weight_sync.tolerance import LogprobTolerance, uniform_tolerance
from rlhf.weight_sync.types import GroupAddress, Manifest, Rendezvous, TensorSpec
from tests.pace import scaled

DEADLINE = 0.15
LIMITS = uniform_tolerance(0.1)
PHASES = ("connect", "prepare", "receive", "commit", "canary", "resume")
MANIFEST = Manifest(tensors=(TensorSpec(name="w", dtype="float32", shape=(1,)),))


class Wire:
    """One weight on its way from the learner to the engines, and what happened in which order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.weight: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.faults: dict[tuple[str, str], Callable[[], Any]] = {}
        self.given_up = asyncio.Event()

    async def happens(self, who: str, phase: str) -> None:
        self.log.append(f"{phase} {who}")
        if fault := self.faults.get((who, phase)):
            await fault()


class FakeLearner:
    """Its log-probs are its weight, and those of a policy are by its offset above."""

    def __init__(self, wire: Wire) -> None:
        self.wire, self.weight, self.version = wire, 1.0, 0
        self.turn = asyncio.Lock()
        self.truth: tuple[float, dict[str, float]] | None = None
        self.rounded_at: list[float] = []
        self.offsets = {"": 0.0}

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(self.offsets)

    async def rendezvous(self, world_size: int) -> Rendezvous:
        return Rendezvous(
            backend="fake", address=GroupAddress(host="here", port=1), world_size=world_size, timeout_seconds=DEADLINE
        )

    async def connect(self, rendezvous: Rendezvous) -> None:
        await self.wire.happens("learner", f"connect of {rendezvous.world_size}")

    async def give_up(self) -> None:
        self.wire.given_up.set()

    async def manifest(self) -> Manifest:
        self.wire.weight = asyncio.get_running_loop().create_future()
        return MANIFEST

    async def send(self) -> dict[str, float]:
        await self.wire.happens("learner", "send")
        self.wire.weight.set_result({policy: self.weight + offset for policy, offset in self.offsets.items()})
        return {"gather": 0.25, "send": 0.5}

    async def token_logprobs(
        self, token_ids: np.ndarray, routing: np.ndarray | None = None, policy: str = "", images: object = ()
    ) -> np.ndarray:
        """An engine's experts are told apart by a number."""
        chosen = 0.0 if routing is None else float(routing[..., 0, 0, 0].max())
        return np.full(token_ids[..., 1:].shape, self.weight + self.offsets[policy] + chosen, np.float32)

    async def rounded_logprobs(
        self, token_ids: np.ndarray, routing: np.ndarray | None = None, policy: str = "", images: object = ()
    ) -> np.ndarray:
        """Weights of twice the size round twice as coarsely."""
        self.rounded_at.append(self.weight)
        return await self.token_logprobs(token_ids, routing, policy) + np.float32(abs(self.weight) / 100)

    async def perturb(self) -> None:
        self.truth, self.weight = (self.weight, self.offsets), self.weight + 5
        self.offsets = {policy: offset + place for place, (policy, offset) in enumerate(self.offsets.items())}

    async def restore(self) -> None:
        assert self.truth is not None
        (self.weight, self.offsets), self.truth = self.truth, None

    def update(self, weight: float) -> None:
        self.weight, self.version = weight, self.version + 1


class FakeEngine:
    def __init__(self, wire: Wire, name: str, transfer_ranks: int = 1) -> None:
        self.wire, self.name, self.transfer_ranks = wire, name, transfer_ranks
        self.policies = ("", "one", "two")
        self.lost: RlhfError | None = None
        self.weight, self.version, self.serving = 0.0, -1, True
        self.frozen, self.off_at_length = False, 0.0
        self.lengths: list[int] = []
        self.asked: list[list[int]] = []
        self.off_on: dict[int, float] = {}
        """By the first token of a sequence."""
        self.weights: dict[str, float] = {}
        self.stale: set[str] = set()
        self.serves: dict[str, str] = {}
        """The policy whose weights it serves in place of another's."""
        self.routing: np.ndarray | None = None

    async def connect(self, rendezvous: Rendezvous, first_rank: int) -> None:
        await self.wire.happens(self.name, "connect")
        self.first_rank = first_rank

    async def prepare(self, manifest: Manifest) -> dict[str, float]:
        await self.wire.happens(self.name, "prepare")
        self.serving = False
        return {"steps": 4, "running": 1.5}

    async def receive(self, manifest: Manifest) -> dict[str, float]:
        await self.wire.happens(self.name, "receive")
        weights = await asyncio.shield(self.wire.weight)
        if not self.frozen:
            self.weights |= {policy: weight for policy, weight in weights.items() if policy not in self.stale}
            self.weight = next(iter(weights.values()))
        return {"receive": 0.5, "reload": 1.0, "repack": 2.0}

    async def commit(self, version: int) -> None:
        await self.wire.happens(self.name, "commit")
        self.version = version

    async def token_logprobs(self, token_ids: np.ndarray, policy: str = "", images: object = ()) -> TokenLogprobs:
        await self.wire.happens(self.name, "canary")
        rows, tokens = token_ids.shape
        firsts = token_ids[:, 0].tolist()
        self.asked.append(firsts)
        routing = None if self.routing is None else np.stack([self.routing] * rows)
        off = np.array([[self.off_on.get(first, 0.0)] for first in firsts], np.float32)
        return TokenLogprobs(np.tile(self.logprobs(tokens - 1, policy), (rows, 1)) + off, routing)

    async def extend(self, token_ids: np.ndarray, tokens: int, policy: str = "") -> Completion:
        self.lengths.append(len(token_ids) + tokens)
        return Completion(
            token_ids=np.zeros(tokens, np.int32),
            behaviour_logprobs=self.logprobs(tokens, policy) + np.float32(self.off_at_length),
            versions=np.zeros(tokens, np.int32),
            finish_reason=FinishReason.LENGTH,
            routing=self.routing,
        )

    def logprobs(self, tokens: int, policy: str) -> np.ndarray:
        chosen = 0.0 if self.routing is None else float(self.routing[0, 0, 0])
        weight = self.weights.get(self.serves.get(policy, policy), self.weight)
        return np.full(tokens, weight + chosen, np.float32)

    async def resume(self) -> None:
        await self.wire.happens(self.name, "resume")
        self.serving = True

    def lose(self, error: RlhfError) -> None:
        self.lost = error


class Stage:
    """A learner, two engines and the publisher between them."""

    def __init__(self, limits: LogprobTolerance | None = LIMITS, sequences: int = 1) -> None:
        self.wire = Wire()
        self.learner = FakeLearner(self.wire)
        self.engines = [FakeEngine(self.wire, "engine-0", transfer_ranks=2), FakeEngine(self.wire, "engine-1")]
        canary = Canary(
            sequences=tuple(np.arange(4, dtype=np.int32) + number for number in range(sequences)),
            long_prompt=np.arange(9, dtype=np.int32),
            reply_tokens=3,
            limits=limits,
        )
        self.clock = Clock()
        CURRENT.set(CurrentSpan(self.clock))
        self.publisher = Publisher(self.learner, self.engines, canary=canary, phase_timeout_seconds=DEADLINE)

    async def connect_and_publish(self) -> None:
        await self.publisher.connect()
        await self.publisher.publish()


async def test_all_phases_come_in_order_on_every_engine_and_each_has_its_span() -> None:
    stage = Stage()
    await stage.publisher.connect()
    assert await stage.publisher.publish() == 0
    phases = [entry.split()[0] for entry in stage.wire.log if entry.endswith(("0", "1"))]
    assert phases == [phase for phase in PHASES for _ in stage.engines]
    assert stage.wire.log.index("send learner") < stage.wire.log.index("commit engine-0")
    assert all(engine.serving and engine.version == 0 and engine.weight == 1.0 for engine in stage.engines)
    assert "connect of 4 learner" in stage.wire.log
    assert [engine.first_rank for engine in stage.engines] == [1, 3]
    spans = stage.clock.drain()
    found = {span.name.removeprefix("weight_sync/") for span in spans}
    assert found == {*PHASES, "engine", "transfer", "gather", "send", "reload", "repack", "learner_canary"}
    loads = [span.attributes for span in spans if span.name == "engine"]
    assert loads == [{"engine": engine.name, "steps": 4, "running": 1.5} for engine in stage.engines]
    assert sorted(span.seconds for span in spans if span.name == "weight_sync/reload") == [1.0, 1.0]


async def test_with_no_experts_to_wait_for_the_learner_answers_the_canary_while_engines_reload() -> None:
    stage = Stage()
    await stage.connect_and_publish()
    answer, asked = asyncio.Event(), stage.learner.token_logprobs

    async def answered(token_ids: np.ndarray, *others: Any) -> np.ndarray:
        answer.set()
        return await asked(token_ids, *others)

    stage.learner.token_logprobs = answered
    stage.wire.faults["engine-0", "receive"] = answer.wait  # the engine has reloaded after the learner's answer
    await stage.publisher.publish()
    assert answer.is_set()


async def test_each_publish_brings_the_new_weights_and_their_version() -> None:
    stage = Stage()
    await stage.publisher.connect()
    for version in range(4):
        assert await stage.publisher.publish() == version
        assert {(engine.weight, engine.version) for engine in stage.engines} == {(stage.learner.weight, version)}
        assert stage.publisher.logprob_difference == 0
        stage.learner.update(stage.learner.weight + 1)


async def test_the_start_check_ends_with_the_real_weights_and_asks_for_a_full_context_once() -> None:
    stage = Stage()
    await stage.publisher.connect()
    assert await stage.publisher.verify() == 0
    assert stage.wire.log.count("send learner") == 2
    assert stage.learner.truth is None
    assert {engine.weight for engine in stage.engines} == {1.0}
    stage.learner.update(2.0)
    await stage.publisher.publish()
    assert [engine.lengths for engine in stage.engines] == [[12], [12]]


async def test_the_start_check_catches_an_engine_that_holds_the_right_weights_and_does_not_take_new_ones() -> None:
    stage = Stage()
    stage.engines[1].weight, stage.engines[1].frozen = 1.0, True
    await stage.publisher.connect()
    with pytest.raises(
        WeightSyncError, match="engine-1 failed in phase 'canary': it does not follow perturbed weights"
    ):
        await stage.publisher.verify()
    assert not any(engine.serving for engine in stage.engines)


async def test_an_engine_that_stays_behind_is_caught_as_stale() -> None:
    stage = Stage()
    await stage.publisher.connect()
    await stage.publisher.publish()
    stage.engines[0].frozen = True
    stage.learner.update(2.0)
    with pytest.raises(WeightSyncError, match=r"version 1 to engine-0 .* it is stale"):
        await stage.publisher.publish()
    assert not any(engine.serving for engine in stage.engines)


async def test_engines_that_differ_only_at_the_end_of_a_full_context_are_refused_at_the_first_publish() -> None:
    stage = Stage()
    stage.engines[1].off_at_length = 0.3
    await stage.publisher.connect()
    with pytest.raises(WeightSyncError, match=r"engine-1 .* at the end of a context of 12 tokens .* the rope scaling"):
        await stage.publisher.verify()
    assert not any(engine.serving for engine in stage.engines)


@pytest.mark.parametrize(("gap", "refused"), [(0.03, False), (0.05, True)])
@pytest.mark.parametrize("weight", [1.0, 10.0])
async def test_without_fixed_limits_nobody_is_refused_for_what_rounding_explains_of_these_weights(
    weight: float, gap: float, refused: bool
) -> None:
    stage = Stage(limits=None)
    await stage.publisher.connect()
    await stage.publisher.verify()
    stage.learner.update(weight)
    stage.engines[0].off_on = {0: gap * weight}
    with pytest.raises(WeightSyncError, match="allowed are") if refused else nullcontext():
        await stage.publisher.publish()


async def test_most_publishes_ask_for_the_next_two_sequences_and_one_of_eight_for_all_and_for_rounding() -> None:
    stage = Stage(limits=None, sequences=8)
    await stage.publisher.connect()
    await stage.publisher.verify()
    start = len(stage.learner.rounded_at)
    for weight in range(2, 11):
        stage.learner.update(float(weight))
        await stage.publisher.publish()
    whole, pairs = list(range(8)), [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert stage.engines[0].asked == [whole, whole, *pairs, *pairs[:3], whole, pairs[0]]
    assert stage.learner.rounded_at[start:] == [9.0]  # the ninth, counted from the first that engines serve


@pytest.mark.parametrize("sequence", [0, 3])
async def test_an_engine_that_is_off_on_one_sequence_is_refused_when_that_is_asked_for(sequence: int) -> None:
    stage = Stage(sequences=4)
    await stage.publisher.connect()
    await stage.publisher.verify()
    stage.engines[1].off_on = {sequence: -8.0}
    for weight in range(2, 2 + sequence // 2):
        stage.learner.update(float(weight))
        await stage.publisher.publish()
    stage.learner.update(9.0)
    with pytest.raises(
        WeightSyncError, match=r"engine-1 .* its log-probs differ from the learner's by 8, on average 4"
    ):
        await stage.publisher.publish()


async def test_the_learner_takes_the_experts_of_each_engine() -> None:
    stage = Stage()
    stage.engines[1].routing = np.full((4, 1, 1), 3, np.int16)
    await stage.publisher.connect()
    await stage.publisher.verify()
    assert stage.publisher.logprob_difference == 0
    stage.learner.update(2.0)
    stage.engines[0].routing, stage.engines[1].frozen = np.full((4, 1, 1), 1, np.int16), True
    with pytest.raises(WeightSyncError, match=r"engine-1 .* it is stale"):
        await stage.publisher.publish()


async def fails() -> None:
    raise RuntimeError("no such tensor")


async def refuses() -> None:
    raise ModelError("engine-1: vllm cannot receive new weights of phi on a CPU")


async def hangs() -> None:
    await asyncio.sleep(60)


async def hangs_and_will_not_be_cancelled() -> None:
    ends = time.monotonic() + 2
    while time.monotonic() < ends:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.1)
    raise asyncio.CancelledError


async def dies() -> None:
    await asyncio.sleep(0.05)
    raise WorkerDied("engine-1", "killed by signal 9")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (fails, "no such tensor"),
        (hangs, "no answer within 0.15 s"),
        pytest.param(hangs_and_will_not_be_cancelled, "no answer within 0.15 s", marks=pytest.mark.waits),
        (dies, "engine-1 died: killed by signal 9"),
    ],
)
async def test_a_fault_in_any_phase_ends_in_a_named_error_in_time(
    phase: str, fault: Callable[[], Any], cause: str
) -> None:
    stage = Stage()
    stage.wire.faults["engine-1", phase] = fault
    stage.learner.version = 7
    if phase == "receive":
        # Its partner waits for it, as a broadcast does.
        stage.wire.faults["learner", "send"] = hangs
    started = time.monotonic()
    with pytest.raises(WeightSyncError, match=cause) as caught:
        await stage.connect_and_publish()
    assert time.monotonic() - started < scaled(10), "what hangs does so for a minute"
    if fault is hangs_and_will_not_be_cancelled:
        assert len(asyncio.all_tasks()) > 1, "it goes on, and was not waited for"
    assert "engine-1" in caught.value.engine
    assert (caught.value.phase, caught.value.version) == (phase, 7)
    if phase not in ("connect", "resume"):
        assert not any(entry.startswith("resume") for entry in stage.wire.log)


async def test_a_death_is_blamed_rather_than_the_connections_it_broke() -> None:
    stage = Stage()
    stage.wire.faults |= {("engine-0", "receive"): fails, ("engine-1", "receive"): dies, ("learner", "send"): fails}
    await stage.publisher.connect()
    with pytest.raises(WeightSyncError) as caught:
        await stage.publisher.publish()
    assert caught.value.engine == "engine-1"
    assert isinstance(caught.value.__cause__, WorkerDied)


async def test_after_a_death_the_others_are_told_to_give_up_the_transfer_and_are_kept() -> None:
    stage = Stage()
    stage.publisher.fails_over = True

    async def waits_for_its_peer() -> None:
        await stage.wire.given_up.wait()
        stage.wire.faults.clear()
        raise TransferError("a broadcast failed: the transfer was given up")

    stage.wire.faults |= {("engine-1", "receive"): dies}
    stage.wire.faults |= dict.fromkeys([("engine-0", "receive"), ("learner", "send")], waits_for_its_peer)
    began = time.monotonic()
    await stage.publisher.publish()
    assert time.monotonic() - began < scaled(1), "the transfer has ended, and is not waited for"
    kept, lost = stage.engines
    assert (kept.weight, kept.lost) == (1.0, None)
    assert isinstance(lost.lost, WeightSyncError)


async def test_a_model_that_an_engine_does_not_know_is_the_users_to_change() -> None:
    stage = Stage()
    stage.wire.faults["engine-1", "prepare"] = refuses
    with pytest.raises(ModelError, match="cannot receive new weights of phi"):
        await stage.connect_and_publish()


async def test_a_learner_that_cannot_send_is_named_while_engines_wait_for_it() -> None:
    stage = Stage()
    stage.wire.faults["learner", "send"] = fails
    await stage.publisher.connect()
    with pytest.raises(WeightSyncError, match="to learner failed in phase 'receive': no such tensor"):
        await stage.publisher.publish()
    assert not any(engine.serving for engine in stage.engines)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", [dies, hangs])
async def test_with_fail_over_the_others_get_the_weights_without_an_engine_that_is_lost_in_any_phase(
    phase: str, fault: Callable[[], Any]
) -> None:
    stage = Stage()
    stage.publisher.fails_over = True
    stage.wire.faults["engine-1", phase] = fault
    await stage.publisher.publish()
    kept, lost = stage.engines
    assert (kept.version, kept.weight, kept.serving, kept.lost) == (0, 1.0, True, None)
    assert isinstance(lost.lost, WeightSyncError)
    assert stage.wire.log.count("connect of 3 learner") == 1, "without it the group has a learner and two ranks"
    stage.learner.update(2.0)
    await stage.publisher.publish()
    assert stage.wire.log.count("connect of 3 learner") == 1
    assert kept.weight == 2.0


async def test_with_fail_over_broken_connections_alone_are_formed_anew() -> None:
    stage = Stage()
    stage.publisher.fails_over = True

    async def breaks() -> None:
        stage.wire.faults.clear()
        raise TransferError("a broadcast failed: a peer is gone")

    stage.wire.faults["engine-0", "receive"] = breaks
    await stage.publisher.publish()
    assert [engine.lost for engine in stage.engines] == [None, None]
    assert {engine.weight for engine in stage.engines} == {1.0}
    assert stage.wire.log.count("connect of 4 learner") == 2


async def test_with_fail_over_an_engine_that_alone_fails_its_canary_is_lost_and_all_of_them_are_an_error() -> None:
    stage = Stage()
    stage.publisher.fails_over = True
    await stage.publisher.publish()
    stage.engines[1].frozen = True
    stage.learner.update(2.0)
    await stage.publisher.publish()
    assert "it is stale" in str(stage.engines[1].lost)
    stage.engines[0].frozen = True
    stage.learner.update(4.0)
    with pytest.raises(WeightSyncError, match="engine-0 failed in phase 'canary'"):
        await stage.publisher.publish()


async def test_an_engine_that_joins_gets_the_weights_while_the_learner_is_idle_and_belongs_to_the_next_group() -> None:
    stage = Stage()
    await stage.publisher.publish()
    late = FakeEngine(stage.wire, "engine-2")
    await stage.publisher.join(late)
    assert (late.weight, late.version, late.serving) == (1.0, 0, True)
    assert stage.wire.log.count("prepare engine-0") == 1, "the others sample on"
    stage.learner.update(2.0)
    await stage.publisher.publish()
    assert {engine.weight for engine in (*stage.engines, late)} == {2.0}
    assert "connect of 5 learner" in stage.wire.log


async def test_an_engine_that_comes_while_the_ranks_work_joins_by_the_next_publish() -> None:
    stage = Stage()
    await stage.publisher.publish()
    late = FakeEngine(stage.wire, "engine-2")
    async with stage.learner.turn:
        joining = asyncio.create_task(stage.publisher.join(late))
        await asyncio.sleep(0.01)
        assert late.version == -1
        publishing = asyncio.create_task(stage.publisher.publish())
    await asyncio.gather(joining, publishing)
    assert (late.weight, late.version) == (1.0, 0)


async def test_an_engine_that_leaves_before_it_has_joined_is_in_no_publish() -> None:
    stage = Stage()
    late = FakeEngine(stage.wire, "engine-2")
    async with stage.learner.turn:
        joining = asyncio.create_task(stage.publisher.join(late))
        await asyncio.sleep(0.01)
        publishing = asyncio.create_task(stage.publisher.publish())
        stage.publisher.leave(late)
        joining.cancel()
    assert await publishing == 0
    assert late.version == -1
    assert {engine.version for engine in stage.engines} == {0}


async def test_an_engine_that_comes_in_the_middle_of_a_publish_does_not_serve_before_it_has_the_weights() -> None:
    stage = Stage()
    late, joining = FakeEngine(stage.wire, "engine-2"), []

    async def comes() -> None:
        joining.append(asyncio.create_task(stage.publisher.join(late)))
        await asyncio.sleep(0)

    stage.wire.faults["engine-0", "commit"] = comes
    await stage.publisher.publish()
    await joining[0]
    assert (late.weight, late.version) == (1.0, 0)


async def test_one_that_cannot_join_is_an_error_for_itself_alone() -> None:
    stage = Stage()
    stage.publisher.fails_over = True
    await stage.publisher.publish()
    stage.wire.faults["engine-2", "receive"] = fails
    with pytest.raises(WeightSyncError, match="engine-2 failed in phase 'receive'"):
        await stage.publisher.join(FakeEngine(stage.wire, "engine-2"))
    stage.learner.update(2.0)
    await stage.publisher.publish()
    assert {engine.weight for engine in stage.engines} == {2.0}


async def test_without_engines_a_publish_waits_for_one_or_for_the_end() -> None:
    stage = Stage()
    stage.publisher.fails_over = True
    for engine in stage.engines:
        stage.publisher.leave(engine)
    publishing = asyncio.create_task(stage.publisher.publish())
    await asyncio.sleep(0.01)
    late = FakeEngine(stage.wire, "engine-2")
    await stage.publisher.join(late)
    assert await publishing == 0
    assert late.weight == 1.0
    stage.publisher.end(EnginesLost("0 engines are left"))
    with pytest.raises(EnginesLost, match="0 engines are left"):
        await stage.publisher.publish()


def of_policies(**offsets: float) -> Stage:
    stage = Stage()
    stage.learner.offsets = offsets
    return stage


async def test_every_policy_has_a_canary_and_one_that_stays_behind_is_named() -> None:
    stage = of_policies(one=0.0, two=3.0)
    await stage.publisher.verify()
    stage.engines[1].stale = {"two"}
    stage.learner.update(2.0)
    with pytest.raises(WeightSyncError, match=r"engine-1.*policy two: ") as raised:
        await stage.publisher.publish()
    assert raised.value.lost == ("engine-1",)
    assert "policy one" not in str(raised.value)


async def test_an_engine_that_confuses_two_policies_fails_even_while_they_are_equal() -> None:
    stage = of_policies(one=0.0, two=0.0)
    for engine in stage.engines:
        engine.serves = {"one": "two", "two": "one"}
    with pytest.raises(WeightSyncError, match=r"policy one: it does not follow perturbed weights.*policy two"):
        await stage.publisher.verify()


async def test_an_engine_that_confuses_two_policies_later_fails() -> None:
    stage = of_policies(one=0.0, two=3.0)
    await stage.publisher.verify()
    stage.engines[0].serves = {"two": "one"}
    stage.learner.update(1.5)
    with pytest.raises(WeightSyncError, match=r"engine-0.*policy two"):
        await stage.publisher.publish()
