"""What a user might write: a loss, an estimator and a loader of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rlhf.trainer.advantages import Estimates
from rlhf.trainer.algorithms.episodes import Episodes
from rlhf.trainer.losses import Actions, LossMetrics


def unclipped(actions: Actions, *, weight: float = 1.0) -> tuple[Tensor, LossMetrics]:
    """The surrogate without a clip, with a metric of its own."""
    ratio = torch.exp(actions.log_ratio)
    seen = LossMetrics(len(ratio), {"my_ratio": ratio.detach().sum()})
    return -weight * ratio * actions.advantages, seen


def towards_the_reference(actions: Actions, *, coefficient: float, entropy: float) -> tuple[Tensor, LossMetrics]:
    """The surrogate with KL to the reference, by its exact gradient, and an entropy bonus of its own."""
    assert actions.reference_logprobs is not None
    loss, seen = unclipped(actions)
    far = (actions.logprobs - actions.reference_logprobs).square() / 2
    return loss + coefficient * far - entropy * actions.entropies, seen


def no_number(episodes: Episodes) -> Estimates:
    """What a mistake looks like."""
    nothing = np.full(episodes.mask.shape, np.nan)
    return Estimates(nothing, nothing)


def doubled_embedding(path: str, **arguments: Any) -> Any:
    """The folder's model with an embedding twice as large."""
    model = AutoModelForCausalLM.from_pretrained(path, **arguments)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(2)
    return model
