"""Maps weight names in memory to the names in a model folder, where one weight may be stored as several tensors.

transformers stacks the experts of a layer in one tensor and renames parts of some models. Folders, and engines that
load them, have the tensors one by one. transformers converts names when it loads a model, and reverts that when it
saves.
"""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion


def as_saved(model: nn.Module, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """A weight of `model`, called `name` in memory, as the tensors of its folder: itself, or views of its parts."""
    if not isinstance(model, PreTrainedModel):
        return {name: tensor}
    saved: dict[str, Tensor] = revert_weight_conversion(model, {name: tensor})
    return saved
