"""The experts that a real engine chose, taken again by a learner: what is told, what replay makes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlhf.engines.vllm.environment import engine_environment
from rlhf.engines.vllm.settings import GenerateRequest
from rlhf.models.config import RoutingMode, TinyModelConfig
from rlhf.models.loading import load_policy
from rlhf.models.policy import PolicyModel
from rlhf.models.routing import REPLAYED, RoutingReplay
from rlhf.models.tiny import save_tiny
from rlhf.types import Completion
from tests.architectures.families import FAMILIES, save
from tests.engines.vllm.made import ended
from tests.integration.torch_learner import ThreadedEngine

pytestmark = pytest.mark.engine

EXPERTS = TinyModelConfig(architecture="qwen3_moe", intermediate_size=96)
PROMPTS = [np.arange(3 + 5 * n, 23 + 5 * n, dtype=np.int32) % 250 for n in range(6)]
REPLY = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(EXPERTS, 0, tmp_path_factory.mktemp("experts"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[ThreadedEngine]:
    os.environ.update(engine_environment("cpu"))
    engine = ThreadedEngine(folder, "float32", records_routing=True)
    yield engine
    engine.stop()


def replies(engine: ThreadedEngine, prompts: list[np.ndarray]) -> list[Completion]:
    """All asked at once; in the order of the prompts."""
    engine.worker.submit([GenerateRequest(str(n), prompt, 1.0, REPLY, n) for n, prompt in enumerate(prompts)])
    found: dict[str, Any] = {}
    while len(found) < len(prompts):
        found |= ended(engine.worker.collect(30))
    assert all(isinstance(reply, Completion) for reply in found.values()), found
    return [found[str(n)] for n in range(len(prompts))]


@contextmanager
def noisy_router(engine: ThreadedEngine, size: float) -> Iterator[None]:
    """Normal noise of `size` on every router logit of the engine, new in every step."""
    from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    generator = torch.Generator().manual_seed(0)

    def noisy(select: Callable[..., Any]) -> Callable[..., Any]:
        def selected(*, router_logits: Tensor, **arguments: Any) -> Any:
            noise = torch.randn(router_logits.shape, generator=generator) * size
            return select(router_logits=router_logits + noise.to(router_logits.dtype), **arguments)

        return selected

    def each(change: Callable[[BaseRouter], None]) -> None:
        engine.look(lambda model: [change(m.router) for m in model.modules() if isinstance(m, MoERunner)] and None)

    each(lambda router: setattr(router, "select_experts", noisy(router.select_experts)))
    try:
        yield
    finally:
        each(lambda router: delattr(router, "select_experts"))


def gap(folder: Path, told: list[tuple[np.ndarray, Completion]], mode: RoutingMode) -> tuple[float, float, float]:
    """Largest and mean difference of log-probs between engine and learner, and how often they choose otherwise."""
    model = load_policy(str(folder))
    policy, routing = PolicyModel(model), RoutingReplay(model, mode)
    distances, differing, chosen = [], 0.0, 0
    for prompt, reply in told:
        ids = torch.tensor(np.concatenate([prompt, reply.token_ids]), dtype=torch.long)[None]
        places = torch.arange(len(prompt), ids.shape[1])
        assert reply.routing is not None
        assert reply.routing.shape[:2] == (ids.shape[1] - 1, 2)
        last = np.full_like(reply.routing[:1], -1)
        routing.take(np.concatenate([reply.routing, last])[None])
        with torch.no_grad():
            logprobs, _ = policy(ids, torch.arange(ids.shape[1])[None], places - 1, places, 1.0)
        distances.append(np.abs(logprobs.numpy() - reply.behaviour_logprobs))
        found, of = routing.disagreement()
        differing, chosen = differing + float(found), chosen + of
    difference = np.concatenate(distances)
    return float(difference.max()), float(difference.mean()), differing / chosen


def test_engine_and_learner_choose_the_same_experts(engine: ThreadedEngine, folder: Path) -> None:
    told = list(zip(PROMPTS, replies(engine, PROMPTS), strict=True))
    for mode in ("compare", "replay"):
        largest, _, disagreement = gap(folder, told, mode)  # type: ignore[arg-type]
        assert largest <= 1e-4
        assert disagreement == 0


def test_replay_takes_away_what_noise_in_the_router_does(engine: ThreadedEngine, folder: Path) -> None:
    """Noise as rounding in 16 bits makes it: it changes few choices, and those by far the most."""
    with noisy_router(engine, 1e-3):
        told = list(zip(PROMPTS, replies(engine, PROMPTS), strict=True))
    alone, alone_on_average, disagreement = gap(folder, told, "compare")
    replayed, replayed_on_average, _ = gap(folder, told, "replay")
    assert disagreement > 0.001
    assert replayed <= min(alone / 10, 1e-4)
    assert replayed_on_average <= alone_on_average / 10


def test_a_prompt_from_the_cache_keeps_the_experts_that_it_was_computed_with(engine: ThreadedEngine) -> None:
    block = 128  # tokens, of vLLM's cache on a CPU
    prompt = np.arange(40, 40 + block + 32, dtype=np.int32)
    with noisy_router(engine, 1.0):
        first, second = replies(engine, [prompt]), replies(engine, [prompt])
    assert first[0].routing is not None
    assert second[0].routing is not None
    np.testing.assert_array_equal(first[0].routing[:block], second[0].routing[:block])
    assert (first[0].routing != second[0].routing).any()


def test_a_reply_cut_off_in_mid_sentence_brings_its_experts(engine: ThreadedEngine) -> None:
    engine.worker.submit([GenerateRequest("long", PROMPTS[0], 1.0, 150, 0)])
    engine.worker.cut_off(["long"])
    (said,) = ended(engine.worker.collect(30)).values()
    assert isinstance(said, Completion)
    assert said.routing is None or len(said.routing) == len(PROMPTS[0]) + len(said.token_ids) - 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(REPLAYED))
def test_the_choices_of_a_family_are_those_of_its_engine(kind: str, tmp_path: Path) -> None:
    """With noise on purpose; without any, for each family in one order of experts or another, nothing differs."""
    os.environ.update(engine_environment("cpu"))
    save(next(family for family in FAMILIES if family.kind == kind), tmp_path)
    engine = ThreadedEngine(tmp_path, "float32", records_routing=True)
    try:
        quiet = list(zip(PROMPTS, replies(engine, PROMPTS), strict=True))
        with noisy_router(engine, 0.1):
            noisy = list(zip(PROMPTS, replies(engine, PROMPTS), strict=True))
    finally:
        engine.stop()
    largest, _, disagreement = gap(tmp_path, quiet, "replay")
    assert largest <= 1e-4
    assert disagreement == 0
    _, alone, disagreement = gap(tmp_path, noisy, "compare")
    _, replayed, _ = gap(tmp_path, noisy, "replay")
    assert disagreement > 0
    assert replayed < alone
