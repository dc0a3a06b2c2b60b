"""Real DeepSpeed ranks that train a policy on pairs: every loss is the paper's, whatever the cut and the plan."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlhf.models.config import LoraConfig, ModelConfig, TinyModelConfig
from rlhf.models.loading import load_policy
from rlhf.models.tiny import save_tiny
from rlhf.trainer.batching.pairs import PairOfSegments, mismatched
from rlhf.trainer.config import DeepSpeedConfig, OptimizerConfig, PreferenceConfig, TrainerConfig
from rlhf.trainer.pair_learner import PreferenceLearner
from rlhf.trainer.settings import LearnerSettings
from rlhf.types import Segment
from tests.integration.learner_ranks import ProcessWorker, ranks_of
from tests.integration.test_algorithms import record_gradients, take_gradients
from tests.pace import scaled
from tests.trainer.batching.test_pairs import made_pairs

pytestmark = pytest.mark.engine

PAIRS = made_pairs()
LOSSES = {
    "dpo": PreferenceConfig(loss="dpo", beta=0.2, label_smoothing=0.1),
    "ipo": PreferenceConfig(loss="ipo", beta=0.5),
    "kto": PreferenceConfig(loss="kto", beta=0.3, desirable_weight=1.5, undesirable_weight=0.7),
}
PLANS = [(1, 1), (1, 60), (2, 60)]
"""`(ranks, tokens a micro-batch)`, beside one pass on one rank."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A policy, and a reference that disagrees with it."""
    tiny = TinyModelConfig(hidden_size=64, intermediate_size=128, max_position_embeddings=96)
    root = tmp_path_factory.mktemp("models")
    policy, reference = save_tiny(tiny, 0, root / "policy"), save_tiny(tiny, 1, root / "reference")
    for folder, factor in ((policy, 4), (reference, 2)):
        model = load_policy(str(folder))
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(factor)
        model.save_pretrained(folder)
    return str(policy), str(reference)


def start(
    workers: list[ProcessWorker], policy: str, reference: str | None, preference: PreferenceConfig, **changes: Any
) -> PreferenceLearner:
    tokens, rate, lora = changes.get("tokens", 100_000), changes.get("rate", 0.0), changes.get("lora")
    config = TrainerConfig(
        updates=8,
        reference_path=reference,
        preference=preference,
        tokens_per_microbatch=tokens,
        optimizer=OptimizerConfig(learning_rate=rate),
        deepspeed=DeepSpeedConfig(ranks=len(workers), zero_stage=changes.get("stage", 0)),
    )
    learner = PreferenceLearner(workers, config)
    settings = LearnerSettings(
        model_path=policy, model=ModelConfig(path=policy, lora=lora), trainer=config, trains="preference"
    )
    asyncio.run(learner.start(settings))
    return learner


def step(learner: PreferenceLearner, workers: list[ProcessWorker]) -> tuple[np.ndarray, dict[str, float]]:
    """The gradient of one step, and what it reported."""
    for worker in workers:
        worker.inspect(record_gradients).result(timeout=scaled(60))
    metrics = asyncio.run(learner.prefer(PAIRS))
    (gradient,), *_ = [worker.inspect(take_gradients).result(timeout=scaled(60)) for worker in workers]
    return gradient, metrics


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_is_that_of_the_formula_and_does_not_depend_on_the_cut(
    loss: str, folders: tuple[str, str], request: pytest.FixtureRequest
) -> None:
    single = ranks_of(request, 1)
    whole, reported = step(start(single, *folders, LOSSES[loss]), single)
    assert np.linalg.norm(whole) > 0
    assert reported == pytest.approx(reported | brute_force(folders, LOSSES[loss]), rel=1e-4, abs=1e-5)
    for ranks, tokens in PLANS:
        workers = ranks_of(request, ranks)
        gradient, metrics = step(start(workers, *folders, LOSSES[loss], tokens=tokens), workers)
        assert np.linalg.norm(gradient - whole) / np.linalg.norm(whole) <= 1e-6
        assert metrics == pytest.approx(reported, rel=1e-5, abs=1e-6)


def brute_force(folders: tuple[str, str], config: PreferenceConfig) -> dict[str, float]:
    """Loss, margin and accuracy by plain transformers and plain formulas, a sequence at a time."""
    policy, reference = (load_policy(folder).eval() for folder in folders)

    def log_ratio(segment: Segment) -> float:
        return logprob(policy, segment) - logprob(reference, segment)

    chosen, rejected = (np.array([log_ratio(getattr(pair, side)) for pair in PAIRS]) for side in ("chosen", "rejected"))
    if config.loss == "ipo":
        chosen /= [int(pair.chosen.action_mask.sum()) for pair in PAIRS]
        rejected /= [int(pair.rejected.action_mask.sum()) for pair in PAIRS]
    gain = config.beta * (chosen - rejected)
    if config.loss == "dpo":
        share = config.label_smoothing
        losses = (1 - share) * np.log1p(np.exp(-gain)) + share * np.log1p(np.exp(gain))
    elif config.loss == "ipo":
        losses = (chosen - rejected - 1 / (2 * config.beta)) ** 2
    else:
        strangers = [log_ratio(segment) for pair in mismatched(PAIRS) for segment in (pair.chosen, pair.rejected)]
        baseline = max(0.0, float(np.mean(strangers)))
        good, bad = (
            1 / (1 + np.exp(config.beta * sign * (side - baseline))) for sign, side in ((1, chosen), (-1, rejected))
        )
        losses = (config.desirable_weight * good + config.undesirable_weight * bad) / 2
    return {
        "pairs/loss": float(losses.mean()),
        "pairs/margin": float(gain.mean()),
        "pairs/accuracy": float(np.mean(gain > 0)),
        "pairs/reward_chosen": float(config.beta * chosen.mean()),
        "pairs/reward_rejected": float(config.beta * rejected.mean()),
    }


def logprob(model: Any, segment: Segment) -> float:
    ids = torch.tensor(segment.token_ids).long()
    with torch.no_grad():
        logits = model(ids[None]).logits[0, :-1].double()
    chosen = logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
    return float(chosen[torch.tensor(segment.action_mask[1:])].sum())


def test_pairs_are_learnt_from_their_own_start_with_and_without_adapters(
    folders: tuple[str, str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The reference of adapters is the policy without them."""
    for lora, rate, ranks, stage in ((None, 1e-3, 2, 3), (LoraConfig(rank=4, alpha=8), 1e-2, 1, 0)):
        dpo = PreferenceConfig()
        learner = start(ranks_of(request, ranks), folders[0], None, dpo, lora=lora, rate=rate, stage=stage, tokens=100)
        before = asyncio.run(learner.evaluate(PAIRS))
        assert before == before | {
            "pairs/loss": pytest.approx(np.log(2)), "pairs/accuracy": 0.5, "pairs/margin": 0.0,
            "pairs/reward_chosen": 0.0, "pairs/reward_rejected": 0.0,
        }  # fmt: skip
        for _ in range(6):
            asyncio.run(learner.prefer(PAIRS))
        after = asyncio.run(learner.evaluate(PAIRS))
        assert learner.version == 6
        assert after["pairs/accuracy"] >= 0.9
        assert after["pairs/loss"] < 0.4
        assert after["pairs/margin"] == pytest.approx(
            after["pairs/reward_chosen"] - after["pairs/reward_rejected"], abs=1e-5
        )
        asyncio.run(learner.save(tmp_path / str(stage)))
        assert exported_margin(folders[0], tmp_path / str(stage)) == pytest.approx(after["pairs/margin"], abs=1e-4)


def exported_margin(start: str, checkpoint: Path) -> float:
    """What plain transformers makes of the exported policy."""
    policy, reference = (load_policy(str(folder)).eval() for folder in (checkpoint / "huggingface", start))

    def gain(pair: PairOfSegments) -> float:
        chosen, rejected = (logprob(policy, side) - logprob(reference, side) for side in (pair.chosen, pair.rejected))
        return chosen - rejected

    return 0.1 * float(np.mean([gain(pair) for pair in PAIRS]))
