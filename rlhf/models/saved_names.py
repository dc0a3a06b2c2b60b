"""What a model's folder calls its weights, where that is another name, or several, than in memory.

transformers stacks the experts of a layer in one tensor and renames parts of some models; folders, and engines that
load them, know the tensors one by one. transformers has a rule for the way in and reverts it on the way out.
"""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion


def as_saved(model: nn.Module, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """A weight of `model`, which it calls `name`, as the tensors of its folder: itself, or views of its parts."""
    if not isinstance(model, PreTrainedModel):
        return {name: tensor}
    saved: dict[str, Tensor] = revert_weight_conversion(model, {name: tensor})
    return saved
