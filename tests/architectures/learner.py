"""A learner of any family, as a publish sees it: the policy as the ranks load, prove and name it, without DeepSpeed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from rlhf.models.config import LoraConfig
from rlhf.models.loading import load_policy
from rlhf.models.lora import add_lora
from rlhf.models.policy import PolicyModel
from rlhf.models.probe import proved_rows
from rlhf.types import Routing
from tests.integration.torch_learner import TorchLearner


class FamilyLearner(TorchLearner):
    """A `WeightSource` over a folder."""

    def __init__(self, folder: Path, *, attention: str, dtype: str, lora: LoraConfig | None = None) -> None:
        self.attention, self.lora = attention, lora
        self.form = lora.weight_sync if lora else "merged"
        super().__init__(folder, dtype)
        self.policy = PolicyModel(self.model, self.rows)

    def loaded(self, folder: Path, dtype: str) -> PreTrainedModel:
        model = load_policy(str(folder), dtype=dtype, attention=self.attention)
        self.rows = proved_rows(model, folder.name)
        return add_lora(model, self.lora)

    async def token_logprobs(self, token_ids: NDArray[np.int32], routing: Routing | None = None) -> NDArray[np.float32]:
        rows = [self._logprobs(torch.from_numpy(row).long()) for row in token_ids.reshape(-1, token_ids.shape[-1])]
        return np.stack(rows).reshape(*token_ids.shape[:-1], -1)

    def _logprobs(self, ids: Tensor) -> NDArray[np.float32]:
        targets = torch.arange(1, len(ids))
        with torch.no_grad():
            logprobs, _ = self.policy(ids[None], torch.arange(len(ids))[None], targets - 1, targets, 1.0)
        found: NDArray[np.float32] = logprobs.numpy()
        return found
