"""Whose settings an optimizer has that goes on from a checkpoint: this run's, with the moments of the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from rlhf.errors import CheckpointError
from rlhf.trainer.config import OptimizerConfig
from rlhf.trainer.rank import zero

BEFORE = OptimizerConfig(learning_rate=0.01, weight_decay=0.1)
AFTER = OptimizerConfig(learning_rate=0.03, weight_decay=0.3, betas=(0.5, 0.8), eps=1e-3)


@dataclass
class FakeEngine:
    """The part of a DeepSpeed engine without ZeRO that goes on."""

    optimizer: torch.optim.AdamW
    lr_scheduler: torch.optim.lr_scheduler.LambdaLR

    def zero_optimization(self) -> bool:
        return False


def engine(weight: torch.nn.Parameter, config: OptimizerConfig) -> FakeEngine:
    optimizer = torch.optim.AdamW(
        [weight], lr=config.learning_rate, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay
    )
    return FakeEngine(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 10))


def step(trained: FakeEngine, weight: torch.nn.Parameter) -> None:
    weight.grad = torch.linspace(-1, 2, 8) * weight.detach()
    trained.optimizer.step()
    trained.lr_scheduler.step()


def test_the_next_step_has_the_settings_of_the_recipe_and_the_moments_of_the_checkpoint() -> None:
    weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 8))
    saved = engine(weight, BEFORE)
    for _ in range(3):
        step(saved, weight)
    expected = torch.nn.Parameter(weight.detach().clone())
    made = engine(expected, AFTER)  # as if the run had begun with these settings, and come to these moments
    made.optimizer.state[expected] = {name: value.clone() for name, value in saved.optimizer.state[weight].items()}
    made.lr_scheduler.last_epoch, made.optimizer.param_groups[0]["lr"] = 3, 0.03 * 0.7
    resumed = engine(weight, AFTER)
    resumed.optimizer.load_state_dict(saved.optimizer.state_dict())
    resumed.lr_scheduler.load_state_dict(saved.lr_scheduler.state_dict())
    zero.put_settings(resumed, AFTER)
    for _ in range(2):
        step(resumed, weight)
        step(made, expected)
        torch.testing.assert_close(weight, expected, rtol=0, atol=1e-7)


def test_a_state_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        zero.load(engine(torch.nn.Parameter(torch.ones(1)), BEFORE), tmp_path, BEFORE, rank=0)
