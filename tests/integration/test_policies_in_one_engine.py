"""Three policies in one real engine: each request is answered by its own adapter, and none is taken for another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rlhf.engines.vllm.environment import engine_environment
from rlhf.engines.vllm.settings import GenerateRequest, RefusedRequest
from rlhf.errors import EngineBroken, ModelError, WeightSyncError
from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import save_tiny
from rlhf.types import Completion, Routing
from rlhf.weight_sync import lora, weights
from rlhf.weight_sync.canary import canary, tolerance_for
from rlhf.weight_sync.publish import Publisher
from rlhf.weight_sync.types import Manifest, Seconds
from tests.integration.test_lora_publish import LORA, LoraLearner
from tests.integration.torch_learner import BUCKET_BYTES, ThreadedEngine

pytestmark = pytest.mark.engine

RANKS = {"one": 4, "two": 8, "old": 8}


class Policies(LoraLearner):
    """A `WeightSource` of three policies over one folder, whose adapters begin equal where their ranks are."""

    policies = tuple(RANKS)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.own = {policy: LoraLearner(folder, rank) for policy, rank in RANKS.items()}

    async def manifest(self) -> Manifest:
        return Manifest(
            tensors=tuple(
                replace(tensor, name=f"{policy}/{tensor.name}")
                for policy, learner in self.own.items()
                for tensor in weights.publish_manifest(learner, self.form).tensors
            )
        )

    async def send(self) -> Seconds:
        sent = chain.from_iterable(
            ((f"{policy}/{name}", value) for name, value in weights.published_tensors(learner, BUCKET_BYTES, self.form))
            for policy, learner in self.own.items()
        )
        await asyncio.to_thread(self.sender.send, sent, await self.manifest())
        return {}

    async def token_logprobs(
        self, token_ids: NDArray[np.int32], routing: Routing | None = None, policy: str = "", images: object = ()
    ) -> NDArray[np.float32]:
        return await self.own[policy].token_logprobs(token_ids)

    async def perturb(self) -> None:
        for policy, learner in self.own.items():
            learner._saved = weights.snapshot(learner, self.form)
            weights.perturb(learner, self.form, policy)

    async def restore(self) -> None:
        for learner in self.own.values():
            await learner.restore()

    def learn(self) -> None:
        """A step of each policy, each of another size."""
        self._version += 1
        for place, learner in enumerate(self.own.values(), 1):
            learner._version = self._version
            learner.update(0.02 * place)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(TinyModelConfig(hidden_size=64, heads=2), 0, tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[ThreadedEngine]:
    os.environ.update(engine_environment("cpu"))
    started = ThreadedEngine(folder, "float32", lora=LORA, policies=tuple(RANKS))
    yield started
    started.stop()


def publisher(learner: Policies, engine: ThreadedEngine) -> Publisher:
    checked = canary(256, 256, tolerance_for("float32"))
    return Publisher(learner, [engine], canary=checked, phase_timeout_seconds=60)


def answers(engine: ThreadedEngine, policies: list[str]) -> list[Completion | RefusedRequest]:
    """Replies to one prompt, greedy, by these policies at once."""
    prompt = np.arange(40, 60, dtype=np.int32)
    asked = [
        GenerateRequest(f"{policy}-{place}", prompt, 0, 12, 0, policy=policy) for place, policy in enumerate(policies)
    ]
    engine.worker.submit(asked)
    found: dict[str, Completion | RefusedRequest] = {}
    while len(found) < len(asked):
        found |= {name: one for name, one in engine.worker.collect(30) if isinstance(one, Completion | RefusedRequest)}
    return [found[one.id] for one in asked]


async def test_requests_side_by_side_get_what_each_policy_gives_alone(folder: Path, engine: ThreadedEngine) -> None:
    learner = Policies(folder)
    publishing = publisher(learner, engine)
    await publishing.verify()
    learner.learn()
    await publishing.publish()
    alone = {policy: answers(engine, [policy])[0] for policy in RANKS}
    for policy, reply in zip([*RANKS] * 2, answers(engine, [*RANKS] * 2), strict=True):
        np.testing.assert_array_equal(reply.token_ids, alone[policy].token_ids)
        np.testing.assert_allclose(reply.behaviour_logprobs, alone[policy].behaviour_logprobs, atol=1e-4)
        whole = np.concatenate([np.arange(40, 60, dtype=np.int32), reply.token_ids])
        expected = (await learner.token_logprobs(whole, policy=policy))[19:]
        np.testing.assert_allclose(reply.behaviour_logprobs, expected, atol=1e-4)
    first = [one.behaviour_logprobs[0] for one in alone.values()]
    assert min(abs(a - b) for a, b in zip(first, [*first[1:], first[0]], strict=True)) > 1e-3, "they differ"


async def test_a_request_names_a_policy_that_the_engine_has(engine: ThreadedEngine) -> None:
    known, nameless = answers(engine, ["one", ""])
    assert isinstance(known, Completion)
    assert nameless == RefusedRequest("the policy is ''; this engine has 'one', 'two', 'old'")


async def test_the_start_check_finds_adapters_in_each_other_s_place(
    folder: Path, engine: ThreadedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any step the two are equal: only the noise of the check tells them apart."""
    swapped = {"two": "old", "old": "two"}

    def split(name: str) -> tuple[str, str]:
        policy, _, layer = name.rpartition("/")
        return swapped.get(policy, policy), layer

    monkeypatch.setattr(lora, "policy_and_layer", split)
    with pytest.raises(WeightSyncError, match="policy two: it does not follow perturbed weights") as raised:
        await publisher(Policies(folder), engine).verify()
    assert "policy old" in str(raised.value)
    assert "policy one" not in str(raised.value)


async def test_a_tensor_that_is_missing_is_named_with_its_policy(folder: Path, engine: ThreadedEngine) -> None:
    """The last one: it breaks the engine."""
    manifest = await Policies(folder).manifest()
    kept = [spec for spec in manifest.tensors if "two/model.layers.0.self_attn.q_proj.lora_A" not in spec.name]
    with pytest.raises((ModelError, EngineBroken), match=r"no tensor fills \['two/model\.layers\.0\.self_attn\.q_proj"):
        await engine.prepare(Manifest(tensors=tuple(kept)))
