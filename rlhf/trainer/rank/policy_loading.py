"""Loads the policy of a rank, and its reference."""

from __future__ import annotations

from dataclasses import replace

from torch import nn
from transformers import PreTrainedModel

from rlhf.chat.image_reader import check_same_images
from rlhf.models.config import LoraConfig
from rlhf.models.loading import load_policy, sharing_weights
from rlhf.models.lora import add_lora, load_adapter
from rlhf.models.policy import PolicyModel
from rlhf.models.probe import proved_rows, sight_of
from rlhf.models.scalar import check_same_vocabulary
from rlhf.trainer.credit.registry import needs_reference
from rlhf.trainer.rank import zero
from rlhf.trainer.rank.sequence_parallel import as_policy
from rlhf.trainer.rank.sharding import module_by_module
from rlhf.trainer.settings import LearnerSettings


def load_policy_model(
    settings: LearnerSettings,
    world_size: int,
    *,
    gradient_checkpointing: int,
    lora: LoraConfig | None = None,
    base: list[PreTrainedModel] | None = None,
) -> PolicyModel:
    model = (
        base[0]
        if base
        else load_policy(
            settings.model_path,
            dtype=settings.model.dtype,
            attention=settings.model.attention,
            gradient_checkpointing=gradient_checkpointing,
            offload_activations=settings.model.offload_activations,
            trust_remote_code=settings.model.trust_remote_code,
            loader=settings.model.loader,
            sharding=zero.sharding(settings, world_size),
            trains_tower=settings.model.tower == "trained",
        )
    )
    if base is not None:
        base[:] = [model]  # stays as it is loaded: adapters and DeepSpeed change the modules that they get
        model = sharing_weights(model)
    with module_by_module(model):
        rows = proved_rows(
            model,
            settings.model_path,
            device=settings.device,
            packing=settings.trainer.packing,
            sight=sight_of(
                settings.model.tower, settings.model_path, trust_remote_code=settings.model.trust_remote_code
            ),
        )
    model = add_lora(model, lora)
    if lora and settings.adapter:
        load_adapter(model, lora, settings.adapter)
    return as_policy(model, settings, rows).to(settings.device)


def load_reference(settings: LearnerSettings, world_size: int) -> nn.Module | None:
    """Return a frozen policy, sharded like the policy, only when the recipe has a use for it. The start of a policy
    with LoRA needs no copy: it is the policy without its adapter."""
    free = settings.model.lora is not None and settings.trainer.reference_path is None
    if free or not (needs_reference(settings.trainer) or settings.trains == "preference"):
        return None
    if settings.trainer.reference_path is not None:
        check_same_vocabulary(
            settings.model_path,
            settings.trainer.reference_path,
            trust_remote_code=settings.model.trust_remote_code,
            setting="trainer.reference_path",
        )
        if settings.model.tower:
            trusted = settings.model.trust_remote_code
            other = settings.trainer.reference_path
            check_same_images(settings.model_path, other, trust_remote_code=trusted, setting="trainer.reference_path")
        settings = replace(settings, model_path=settings.trainer.reference_path)
    frozen = load_policy_model(settings, world_size, gradient_checkpointing=0).requires_grad_(False).eval()
    return zero.build_reference(frozen, settings, world_size)
