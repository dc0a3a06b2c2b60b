"""The average of the policy's weights, against a loop over the weights themselves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from rlhf.errors import CheckpointError
from rlhf.trainer.rank.ema import Average

DECAY = 0.9


def made_policy(dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).to(dtype)
    model[0].bias.requires_grad_(False)
    return SimpleNamespace(model=model)


def learn(policy: SimpleNamespace, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=generator).to(weight.dtype))


def state(policy: SimpleNamespace) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_average_is_that_of_all_weights_so_far(dtype: torch.dtype) -> None:
    policy = made_policy(dtype)
    average = Average(policy, DECAY, rank=0)
    expected = {name: weight.double() for name, weight in state(policy).items()}
    for update in range(20):
        learn(policy, update)
        average.update()
        expected = {name: DECAY * expected[name] + (1 - DECAY) * w.double() for name, w in state(policy).items()}
    learnt = state(policy)
    with average.in_place():
        for name, weight in state(policy).items():
            torch.testing.assert_close(
                weight, expected[name].to(dtype), rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-6
            )
    assert all(torch.equal(weight, learnt[name]) for name, weight in state(policy).items()), (
        "learning goes on as it was"
    )


def test_a_loaded_average_continues_bit_for_bit(tmp_path: Path) -> None:
    policy = made_policy()
    average = Average(policy, DECAY, rank=0)
    learn(policy, 1)
    average.update()
    average.save(tmp_path)
    resumed = Average(policy, DECAY, rank=1)
    resumed.load(tmp_path)
    learn(policy, 2)
    for one in (average, resumed):
        one.update()
    with average.in_place():
        uninterrupted = state(policy)
    with resumed.in_place():
        assert all(torch.equal(weight, uninterrupted[name]) for name, weight in state(policy).items())


def test_only_rank_0_writes_what_all_ranks_hold_whole(tmp_path: Path) -> None:
    Average(made_policy(), DECAY, rank=1).save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_without_an_average_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"set trainer\.ema_decay=null"):
        Average(made_policy(), DECAY, rank=0).load(tmp_path)
