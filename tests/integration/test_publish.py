"""Real vLLM takes what a learner sends, and a publish is refused when it does not take all of it.

One engine for each pair of model and precision; faults are put into its receiver's load step and taken out again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from torch.nn.functional import linear

from rlhf.engines.vllm.environment import engine_environment
from rlhf.errors import WeightSyncError
from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import save_tiny
from rlhf.weight_sync.canary import canary, tolerance_for
from rlhf.weight_sync.publish import Publisher
from tests.integration.sampled import HOT, hot_folder
from tests.integration.torch_learner import ROUNDING, ThreadedEngine, TorchLearner

pytestmark = pytest.mark.engine

MODELS = {
    "llama": TinyModelConfig(architecture="llama", tie_word_embeddings=False),
    "qwen2": TinyModelConfig(architecture="qwen2", tie_word_embeddings=True),
    "qwen3": TinyModelConfig(architecture="qwen3", tie_word_embeddings=True),
    "hot": HOT,
    "experts": TinyModelConfig(architecture="qwen3_moe", intermediate_size=96, tie_word_embeddings=False),
}
CASES = [("llama", "float32"), ("qwen2", "bfloat16")]
SLOW_CASES = [("qwen2", "float32"), ("qwen3", "float32"), ("llama", "bfloat16"), ("hot", "bfloat16")]
"""The last one has 8 layers and logits to +-30, where rounding alone moves log-probs by tenths of a nat."""
CLASSES = {
    "embedding": "embed_tokens",
    "head": "lm_head",
    "attention": "self_attn",
    "mlp": "mlp",
    "norm": "norm",
    "experts": "mlp.experts",
    "router": "mlp.gate.",
}
DENSE = ("embedding", "head", "attention", "mlp", "norm")
"""What every model has."""
Loaded = Iterator[tuple[str, Tensor]]


class Pair:
    """A learner and an engine that started from the same folder."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.folder, self.dtype, self.tied = folder, dtype, MODELS[folder.name].tie_word_embeddings
        self.engine = ThreadedEngine(folder, dtype)

    async def publisher(self) -> tuple[TorchLearner, Publisher]:
        """A new learner at the start, connected to the engine."""
        learner = TorchLearner(self.folder, self.dtype)
        context = MODELS[self.folder.name].max_position_embeddings
        publisher = Publisher(
            learner, [self.engine], canary=canary(256, context, tolerance_for(self.dtype)), phase_timeout_seconds=30
        )
        await publisher.connect()
        return learner, publisher


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], Pair]]:
    """Engines by model and precision, one at a time: two share no process well."""
    os.environ.update(engine_environment("cpu"))
    made: dict[tuple[str, str], Pair] = {}

    def pair(model: str, dtype: str) -> Pair:
        if (model, dtype) not in made:
            for other in made.values():
                other.engine.stop()
            made.clear()
            folder = tmp_path_factory.mktemp("models", numbered=True) / model
            hot_folder(folder) if model == "hot" else save_tiny(MODELS[model], 0, folder)
            made[model, dtype] = Pair(folder, dtype)
        return made[model, dtype]

    yield pair
    for other in made.values():
        other.engine.stop()


@pytest.fixture(
    scope="module",
    params=[*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW_CASES)],
    ids=["-".join(case) for case in [*CASES, *SLOW_CASES]],
)
def pair(request: pytest.FixtureRequest, pairs: Callable[[str, str], Pair]) -> Pair:
    return pairs(*request.param)


def spoil(monkeypatch: pytest.MonkeyPatch, spoiled: Callable[[Loaded, dict[str, Tensor]], Loaded]) -> None:
    """Let the receiver load `spoiled(tensors that arrived, the engine's first tensors)`."""
    from rlhf.weight_sync.receiver import Receiver

    load = Receiver.load
    first: dict[str, Tensor] = {}

    def load_spoiled(receiver: Receiver, tensors: Loaded) -> None:
        arrived = [(name, tensor) for name, tensor in tensors]
        for name, tensor in arrived:
            first.setdefault(name, tensor.clone())
        load(receiver, spoiled(iter(arrived), first))

    monkeypatch.setattr(Receiver, "load", load_spoiled)


async def test_after_every_publish_the_engine_computes_what_the_learner_does(pair: Pair) -> None:
    learner, publisher = await pair.publisher()
    await publisher.verify()
    for version in range(1, 6):
        learner.update(1e-2)
        assert await publisher.publish() == version
        assert publisher.logprob_difference <= ROUNDING[pair.dtype] * (10 if pair.folder.name == "hot" else 1)


@pytest.mark.parametrize("frozen", DENSE)
async def test_the_start_check_catches_a_frozen_class(pair: Pair, frozen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, publisher = await pair.publisher()
    await publisher.publish()
    freeze(monkeypatch, pair, frozen)
    # The weights that were there are the right ones: only the start check can tell.
    await publisher.publish()
    with pytest.raises(WeightSyncError, match="it does not follow perturbed weights"):
        await publisher.verify()


@pytest.mark.parametrize("frozen", DENSE)
async def test_the_canary_catches_a_class_that_freezes_later(
    pair: Pair, frozen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, publisher = await pair.publisher()
    await publisher.verify()
    freeze(monkeypatch, pair, frozen)
    with pytest.raises(WeightSyncError, match="in phase 'canary'"):
        await publish_until_it_shows(learner, publisher)


async def test_experts_follow_every_publish_and_stay_behind_unseen_neither_at_first_nor_later(
    pairs: Callable[[str, str], Pair],
) -> None:
    pair = pairs("experts", "float32")
    learner, publisher = await pair.publisher()
    await publisher.verify()
    for version in range(1, 4):
        learner.update(1e-2)
        assert await publisher.publish() == version
        assert publisher.logprob_difference <= ROUNDING["float32"]
    for frozen in ("experts", "router"):
        with pytest.MonkeyPatch.context() as monkeypatch:
            learner, publisher = await pair.publisher()
            await publisher.publish()
            freeze(monkeypatch, pair, frozen)
            await publisher.publish()
            with pytest.raises(WeightSyncError, match="it does not follow perturbed weights"):
                await publisher.verify()
        with pytest.MonkeyPatch.context() as monkeypatch:
            learner, publisher = await pair.publisher()
            await publisher.verify()
            freeze(monkeypatch, pair, frozen)
            with pytest.raises(WeightSyncError, match="in phase 'canary'"):
                await publish_until_it_shows(learner, publisher)


async def test_the_start_check_catches_two_tensors_that_changed_places(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, publisher = await pair.publisher()
    spoil(monkeypatch, swapped)
    with pytest.raises(WeightSyncError, match="it does not follow perturbed weights"):
        await publisher.verify()


async def test_the_canary_catches_an_engine_that_applies_nothing_later(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, publisher = await pair.publisher()
    await publisher.verify()
    spoil(monkeypatch, lambda arrived, first: ((name, first[name]) for name, _ in arrived))
    await publisher.publish()
    with pytest.raises(WeightSyncError, match=r"it is stale|differ from the learner's"):
        await publish_until_it_shows(learner, publisher)


async def publish_until_it_shows(learner: TorchLearner, publisher: Publisher) -> None:
    """Updates until the learner's canary has moved by many tolerances; a healthy engine takes them all."""
    for _ in range(20):
        learner.update(2e-2)
        await publisher.publish()


def freeze(monkeypatch: pytest.MonkeyPatch, pair: Pair, name: str) -> None:
    """Let one class of the engine's tensors stay as it is now.

    A tied head is a packed copy that was not renewed; where the processor has none (bfloat16 without its instructions),
    the head multiplies by the embedding's own memory and cannot be old. So the copy is made here, the same for all.
    """
    if name == "head" and pair.tied:
        old = pair.engine.look(lambda model: model.lm_head.weight.detach().clone())

        def serve_old(model: Any) -> None:
            model.lm_head.cpu_linear = lambda x, weight, bias: linear(x, old, bias)

        monkeypatch.setattr("rlhf.weight_sync.receiver.share_packed_embeddings", serve_old)
        return
    pattern = CLASSES[name]
    spoil(
        monkeypatch,
        lambda arrived, first: ((name, first[name] if pattern in name else tensor) for name, tensor in arrived),
    )


def swapped(arrived: Loaded, first: dict[str, Tensor]) -> Loaded:
    """Gate and up projections, which have one shape, in each other's place."""
    places = {"gate_proj": "up_proj", "up_proj": "gate_proj"}
    for name, tensor in arrived:
        kind = name.split(".")[-2]
        yield name.replace(kind, places.get(kind, kind)), tensor
