"""The single file computes what the library computes, and stays one short file that needs nothing of it."""

from __future__ import annotations

import ast
import sys
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlhf.trainer.credit.estimators import group_relative
from rlhf.trainer.credit.kl import kl_in_loss
from rlhf.trainer.losses.policy import ppo
from tests.single_file.loaded import SOURCE, load
from tests.trainer.credit.made import scored
from tests.trainer.losses.made import flat, spread
from tests.trainer.losses.summed import summed

grpo = load()

TOLERANCE = 1e-6
REWARDS = [[1.0, 0, 0, 1, 0], [0.1, 0.1, 0.1, 0.1, 0.1], [0, 0, 0, 0, 0], [0.3, -7, 2, 2, 1e-3]]


class Bigram(nn.Module):
    """The smallest language model: logits of the next token depend on the last one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(torch.randn(32, 32, generator=generator))

    def forward(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=self.table[input_ids])


def samples(noise: float) -> list[Any]:
    """Replies of different lengths, sampled by a policy whose log-probs are `noise` from those of `Bigram(0)`."""
    rng = np.random.default_rng(0)
    problems = [f"{number:05d}" for number in rng.integers(0, 10**5, 12)]
    replies = [rng.integers(0, 12, 1 + index % 8).tolist() for index in range(12)]
    return [sample(*pair, noise, rng) for pair in zip(problems, replies, strict=True)]


def sample(problem: str, reply: list[int], noise: float, rng: np.random.Generator) -> Any:
    history = grpo.encode(problem + "=") + reply
    logprobs = row_logprobs(Bigram(0), history, 1.0)[-len(reply) :].detach().numpy()
    return grpo.Sample(
        problem=problem, reply=reply, behaviour_logprobs=(logprobs + noise * rng.standard_normal(len(reply))).tolist()
    )


def row_logprobs(model: Bigram, history: list[int], temperature: float) -> Tensor:
    """Log-probs of all tokens of one unpadded row but the first, token by token."""
    return torch.stack(
        [torch.log_softmax(model.table[before] / temperature, dim=-1)[token] for before, token in pairwise(history)]
    )


def padded(rows: list[Tensor], filler: float) -> Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=filler)


def of_library(policy: Bigram, reference: Bigram, batch: list[Any], advantages: Tensor, settings: Any) -> Tensor:
    """The loss of the library on the same samples, with NaN wherever it must not look."""
    lengths = [len(one.reply) for one in batch]
    mask = padded([torch.ones(length) for length in lengths], 0.0).bool()

    def logprobs(model: Bigram) -> Tensor:
        rows = [row_logprobs(model, grpo.encode(one.problem + "=") + one.reply, settings.temperature) for one in batch]
        return padded([row[-length:] for row, length in zip(rows, lengths, strict=True)], float("nan"))

    old = padded([torch.tensor(one.behaviour_logprobs) for one in batch], float("nan"))
    actions = flat(mask, logprobs(policy), old, advantages.float()[:, None].expand(mask.shape))
    per_token, metrics = ppo(actions, clip_low=settings.clip_low, clip_high=settings.clip_high)
    assert all(metrics.sums[f"policy/clip_fraction_{side}"] > 0 for side in ("low", "high")), "else it proves nothing"
    kl = kl_in_loss(actions.logprobs - logprobs(reference).detach()[mask], "k3")
    return summed(spread(per_token + settings.kl_coefficient * kl, mask), mask, "token_mean")


def gradient(loss: Tensor, leaf: Tensor) -> Tensor:
    (value,) = torch.autograd.grad(loss, leaf)
    return value


def largest(difference: Tensor) -> float:
    return difference.abs().max().item()


def test_advantages_are_those_of_the_library_and_equal_rewards_give_exactly_zero() -> None:
    advantages = grpo.group_advantages(torch.tensor(REWARDS, dtype=torch.float64))
    expected = np.stack([group_relative(scored(group), normalize_by_std=True) for group in REWARDS])
    assert advantages.dtype == torch.float64
    assert np.abs(advantages.numpy() - expected).max() <= TOLERANCE
    assert advantages[1:3].eq(0).all()
    assert advantages[0].abs().min() > 0.5


@pytest.mark.parametrize("kl_coefficient", [0.0, 0.3])
def test_the_loss_of_samples_of_different_lengths_is_that_of_the_library(kl_coefficient: float) -> None:
    settings = grpo.Settings(kl_coefficient=kl_coefficient, temperature=0.8)
    batch, policy, reference = samples(noise=0.4), Bigram(0), Bigram(1)
    advantages = grpo.group_advantages(torch.randn(3, 4, generator=torch.Generator().manual_seed(2))).flatten()
    loss, _ = grpo.batch_loss(policy, reference if kl_coefficient else None, batch, advantages, settings)
    expected = of_library(policy, reference, batch, advantages, settings)
    ours, theirs = gradient(loss, policy.table), gradient(expected, policy.table)
    assert largest(theirs) > 1e-3
    assert largest(loss - expected) <= TOLERANCE
    assert largest(ours - theirs) <= TOLERANCE


def learn(batch: list[Any], policy: Bigram) -> None:
    learner = grpo.Learner(policy, 1e-3, 10)
    groups = [batch[start : start + 4] for start in range(0, 12, 4)]
    grpo.learn(learner, None, groups, grpo.group_advantages(torch.eye(3, 4)), grpo.Settings(minibatches=2))


def test_replies_that_the_learners_weights_sampled_are_learnt_from() -> None:
    policy = Bigram(0)
    learn(samples(noise=0.0), policy)
    assert largest(policy.table - Bigram(0).table) > 1e-4


@pytest.mark.parametrize("noise", [1e-3, float("nan")])
def test_replies_that_other_weights_sampled_stop_the_run_before_anything_is_learnt(noise: float) -> None:
    policy = Bigram(0)
    with pytest.raises(RuntimeError, match="log-probs of vLLM and the learner differ by"):
        learn(samples(noise), policy)
    assert torch.equal(policy.table, Bigram(0).table)


def test_held_out_problems_are_never_trained_on() -> None:
    training, held_out = grpo.problems(seed=3)
    assert len(set(held_out)) == grpo.HELD_OUT
    assert set(training) | set(held_out) == {f"{number:05d}" for number in range(10**5)}
    assert not set(training) & set(held_out)


def test_the_file_is_at_most_300_lines_and_needs_torch_transformers_and_vllm_alone() -> None:
    source = SOURCE.read_text()
    assert 100 < len(source.splitlines()) <= 300
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [node.module or "" for node in imports if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names]
    roots = {name.split(".")[0] for name in names}
    assert roots - set(sys.stdlib_module_names) == {"torch", "transformers", "vllm"}


@pytest.mark.parametrize(
    "flags", ["--group-size 1", "--minibatches 65", "--minibatches 0", "--temperature 0", "--lr 1"]
)
def test_a_flag_that_cannot_be_trained_with_ends_in_one_line(
    flags: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["grpo.py", *flags.split()])
    with pytest.raises(SystemExit) as ended:
        grpo.read_settings()
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err.splitlines()[-1]
