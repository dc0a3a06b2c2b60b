from collections.abc import Iterator

import numpy as np
import pytest
import torch

from rlhf.models.config import TinyModelConfig
from rlhf.models.head import chosen_logprobs
from rlhf.models.loading import load_policy
from rlhf.models.policy import PolicyModel
from rlhf.models.tiny import save_tiny
from rlhf.trainer.batching.batch import MicroBatch, build_minibatches
from rlhf.types import Group
from tests.trainer.made import made_batch, made_groups, rewritten_group, with_one_prompt


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    config = TinyModelConfig(architecture=request.param, hidden_size=64, intermediate_size=128, heads=2, kv_heads=1)
    return str(save_tiny(config, 0, tmp_path_factory.mktemp(request.param)))


@pytest.fixture(params=["sdpa", "eager"])
def policy(folder: str, request: pytest.FixtureRequest) -> PolicyModel:
    return PolicyModel(load_policy(folder, attention=request.param))


def microbatches(row_tokens: int, tokens: int, groups: list[Group]) -> Iterator[MicroBatch]:
    batch = made_batch(groups)
    (steps,) = build_minibatches(batch, minibatches=1, ranks=1, tokens_per_microbatch=tokens, row_tokens=row_tokens)
    return iter(steps[0])


def forward(policy: PolicyModel, micro: MicroBatch) -> torch.Tensor:
    logprobs, _ = policy(
        torch.tensor(micro.token_ids).long(),
        torch.tensor(micro.position_ids).long(),
        torch.tensor(micro.sources),
        torch.tensor(micro.targets),
        0.7,
    )
    return logprobs


def computed(
    policy: PolicyModel, row_tokens: int, tokens: int, groups: list[Group] | None = None
) -> tuple[np.ndarray, torch.Tensor]:
    """Return the log-probs of all action tokens in the batch's order, and the gradient of their weighted sum."""
    policy.zero_grad()
    groups = groups or made_groups()
    flat = np.zeros(sum(s.trajectory.action_tokens for g in groups for s in g.samples))
    for micro in microbatches(row_tokens, tokens, groups):
        logprobs = forward(policy, micro)
        flat[micro.places] = logprobs.detach()
        (logprobs * torch.tensor(np.cos(micro.places), dtype=torch.float32)).sum().backward()
    return flat, torch.cat([p.grad.double().flatten() for p in policy.parameters()])


def one_by_one(policy: PolicyModel) -> np.ndarray:
    """Each sequence alone through the plain Hugging Face forward pass."""
    values = []
    for sample in (s for g in made_groups() for s in g.samples):
        segment = sample.trajectory.segments[0]
        ids = torch.tensor(segment.token_ids).long()
        with torch.no_grad():
            logits = policy.model(input_ids=ids[None]).logits[0]
        actions = torch.tensor(np.flatnonzero(segment.action_mask))
        values.append(chosen_logprobs(logits[actions - 1], ids[actions], 0.7)[0].numpy())
    return np.concatenate(values)


def test_packed_log_probs_and_gradients_equal_those_of_each_sequence_alone(policy: PolicyModel) -> None:
    packed, gradient = computed(policy, row_tokens=128, tokens=512)
    np.testing.assert_allclose(packed, one_by_one(policy), rtol=0, atol=1e-5)
    _, alone = computed(policy, row_tokens=1, tokens=1)
    assert float((gradient - alone).norm() / alone.norm()) <= 1e-6


def test_a_padding_micro_batch_reaches_every_weight_with_zero(policy: PolicyModel) -> None:
    groups = made_groups(1, 1)
    batch = made_batch(groups)
    padding = build_minibatches(batch, minibatches=1, ranks=2, tokens_per_microbatch=512)[1][0][0]
    assert len(padding.targets) == 0
    policy.zero_grad()
    forward(policy, padding).sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in policy.parameters())


def test_samples_that_share_their_prompt_are_as_if_each_were_alone(policy: PolicyModel) -> None:
    groups = [with_one_prompt(group) for group in made_groups()]
    together, gradient = computed(policy, 128, 512, groups)
    alone, expected = computed(policy, 1, 4, groups)
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)
    assert float((gradient - expected).norm() / expected.norm()) <= 1e-6


def test_an_agent_s_rewritten_contexts_are_as_if_each_were_alone_and_cost_little_more_than_one(
    policy: PolicyModel,
) -> None:
    groups = [rewritten_group(8)]
    together, gradient = computed(policy, 128, 512, groups)
    alone, expected = computed(policy, 1, 4, groups)
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)
    assert float((gradient - expected).norm() / expected.norm()) <= 1e-6
    tokens = sum(int((micro.position_ids > 0).sum()) + 1 for micro in microbatches(128, 512, groups))
    keeps_thinking = 2 * (10 + 8 * (6 + 2) + 7 * 3 + (6 + 2))  # the reply that is asked for twice
    assert tokens <= 1.3 * keeps_thinking
