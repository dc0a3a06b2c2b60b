"""A model's whole state in one process, as only tests need it."""

from __future__ import annotations

from torch import Tensor

from rlhf.models.lora import HasModel
from rlhf.weight_sync import weights


def whole_state(policy: HasModel, bucket_bytes: int = 1 << 20) -> dict[str, Tensor]:
    """Everything in the model's folder, by its names there, with adapters merged. Collective."""
    weights.folder_manifest(policy)  # refuses what an export refuses
    return {name: tensor.to("cpu", copy=True) for name, tensor in weights.folder_tensors(policy, bucket_bytes)}
