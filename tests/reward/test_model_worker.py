"""A real reward model scores sequences as Hugging Face does, and refuses what it cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from rlhf.errors import ModelError
from rlhf.models.config import TinyModelConfig
from rlhf.models.scalar import load_scalar
from rlhf.models.tiny import byte_tokenizer, save_tiny
from rlhf.reward.model_worker import RewardModelFacts, RewardModelSettings, RewardModelWorker
from rlhf.types import Prompt

TINY = TinyModelConfig(hidden_size=64, intermediate_size=128, max_position_embeddings=96)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(TINY, 0, tmp_path_factory.mktemp("policy")))


@pytest.fixture(scope="module")
def reward_model(policy: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("reward-model")
    model = load_scalar(policy, fresh_head=True)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def test_scores_are_those_of_hugging_face_whatever_goes_together(policy: str, reward_model: str) -> None:
    worker = RewardModelWorker()
    facts = worker.start(RewardModelSettings(model=reward_model, policy=policy, tokens_per_batch=64))
    assert facts == RewardModelFacts(context_tokens=96, vocab_size=288)
    rng = np.random.default_rng(0)
    sequences = [rng.integers(3, 250, length).astype(np.int32) for length in (40, 3, 90, 17, 3, 25)]
    plain = AutoModelForSequenceClassification.from_pretrained(reward_model)
    with torch.no_grad():
        expected = [float(plain(torch.tensor(tokens).long()[None]).logits) for tokens in sequences]
    np.testing.assert_allclose(worker.score([Prompt(token_ids=one) for one in sequences]), expected, rtol=0, atol=1e-5)
    assert np.std(expected) > 1e-3


def test_a_reward_model_that_reads_other_tokens_is_refused(reward_model: str, tmp_path: Path) -> None:
    save_tiny(TINY, 0, tmp_path)
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<|tool|>"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has another vocabulary than the policy"):
        RewardModelWorker().start(RewardModelSettings(model=reward_model, policy=str(tmp_path)))
