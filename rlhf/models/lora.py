"""Low-rank adapters (LoRA, arXiv 2106.09685): frozen weights `W`, and two small trained matrices for each. A layer
computes with `W + alpha / rank * B A`; `B` starts at zero. The layers are `peft`'s, injected into the model in place:
its weights keep their names except for a `.base_layer`, which `hugging_face_name` removes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf.errors import ModelError
from rlhf.models.config import LoraConfig
from rlhf.models.failures import naming_model
from rlhf.models.loading import load_config, loading_model
from rlhf.models.towers import auto_class, towers

ADAPTER = "default"
SEED = 0
"""Seed of the initial `A`: the same in every run and on every rank."""
LINEAR = ("Linear", "FalconLinear", "Conv1D")
"""Classes that only multiply with their weight. Other subclasses do more, such as route tokens."""
NEVER_CALLED = ("dt_proj", "router.classifier")
"""Linear layers of Mamba and LongCat whose weight the model reads itself: an adapter would have no effect."""


class HasModel(Protocol):
    @property
    def model(self) -> nn.Module: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LowRank:
    """What an adapter adds to a weight `[out, in]`: `scaling * b @ a`, with `a` `[rank, in]` and `b` `[out, rank]`; if
    the weight is `transposed`, `[in, out]` as in GPT-2, the transpose of that."""

    a: nn.Parameter
    b: nn.Parameter
    scaling: float
    transposed: bool = False

    def change(self) -> Tensor:
        """Return what is added to the weight, in float32, once `a` and `b` are gathered."""
        product = self.scaling * (self.b.detach().float() @ self.a.detach().float())
        return product.T if self.transposed else product


def add_lora(model: PreTrainedModel, config: LoraConfig | None) -> PreTrainedModel:
    """Return the model, changed in place: its weights are frozen, and adapters are trained instead. Without a config it
    is unchanged. Raises `ModelError` for targets that are not linear layers of the decoder."""
    if config is None:
        return model
    layers = _targeted(model, config)
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        # In a model that it knows `peft` would also adapt experts whose names end as a layer's does.
        _peft().inject_adapter_in_model(peft_config(config, layers), nn.ModuleDict({"policy": model}), ADAPTER)
    return model


def low_ranks(model: nn.Module) -> dict[str, LowRank]:
    """Return the adapters, by the Hugging Face name of the weight that each changes. Empty without LoRA."""
    return {
        f"{name}.weight": LowRank(
            a=layer.lora_A[ADAPTER].weight,
            b=layer.lora_B[ADAPTER].weight,
            scaling=float(layer.scaling[ADAPTER]),
            transposed=layer.fan_in_fan_out,
        )
        for name, layer in _adapted(model).items()
    }


def hugging_face_name(parameter: str) -> str | None:
    """Return the parameter's name in the model's folder; `None` for a part of an adapter."""
    return None if ".lora_" in parameter else parameter.replace(".base_layer.", ".")


@contextmanager
def without_adapter(policy: HasModel) -> Iterator[None]:
    """Inside the block, `policy` computes as its base model does. This gives the reference of a policy with LoRA
    without extra memory. For forward passes without gradients. Raises `ModelError` if there is no adapter."""
    layers = list(_adapted(policy.model).values())
    if not layers:
        raise ModelError("the policy has no adapter: its reference needs a separate model")
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def save_adapter(folder: Path, tensors: dict[str, Tensor], config: LoraConfig, base: str | None) -> None:
    """Write an adapter in `peft`'s format. `tensors` are `A` and `B`, unscaled, by their names in a weight sync;
    `base` is the name of the model that it belongs to."""
    folder.mkdir(parents=True, exist_ok=True)
    layers = {name.partition(".lora_")[0].rpartition(".")[2] for name in tensors}
    described = peft_config(config, sorted(layers))
    described.base_model_name_or_path, described.inference_mode = base, True
    described.save_pretrained(str(folder))
    named = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def load_adapter(model: PreTrainedModel, config: LoraConfig, folder: str) -> None:
    """Copy the adapter of a `folder` in `peft`'s format into the model's. Raises `ModelError` where it is another kind
    of adapter than `config` describes."""
    with naming_model(f"{folder} is not an adapter", OSError, SafetensorError):
        described, tensors = _peft().LoraConfig.from_pretrained(folder), _peft().load_peft_weights(folder, "cpu")
    if (described.r, described.lora_alpha) != (config.rank, config.alpha):
        raise ModelError(
            f"{folder} has rank {described.r} and alpha {described.lora_alpha}, but the policy's lora says rank "
            f"{config.rank} and alpha {config.alpha}; set lora to what the adapter has"
        )
    own = {
        f"base_model.model.{name.removesuffix('weight')}lora_{part}.weight": parameter
        for name, adapter in low_ranks(model).items()
        for part, parameter in (("A", adapter.a), ("B", adapter.b))
    }
    plain = not (described.use_dora or described.use_rslora or described.rank_pattern or described.alpha_pattern)
    if not plain or own.keys() != tensors.keys():
        odd = min(own.keys() ^ tensors.keys(), default="it uses DoRA, rsLoRA or ranks by layer")
        raise ModelError(f"{folder} does not fit this model and lora.target_modules: {odd}")
    for name, parameter in own.items():
        if parameter.shape != tensors[name].shape:
            raise ModelError(f"{folder} is an adapter of a model of another shape: {name}")
        parameter.data.copy_(tensors[name])


def peft_config(config: LoraConfig, targets: Sequence[str]) -> Any:
    """Adapters for the layers `targets`, without dropout: log-probs must be those of the policy that sampled."""
    return _peft().LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=list(targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )


def _adapted(model: nn.Module) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if "lora_A" in dict(module.named_children())}


def _peft() -> Any:
    """Import `peft` only if there are adapters: the import takes as long as all other imports of a rank."""
    import peft

    return peft


def lora_for_model(config: LoraConfig | None, path: str, *, trust_remote_code: bool = False) -> LoraConfig | None:
    """Return the config with `target_modules` filled in for the model in `path`: by default all linear layers."""
    if config is None or config.target_modules:
        return config
    described = load_config(path, trust_remote_code=trust_remote_code)
    with loading_model("model.path", path, described), torch.device("meta"):
        model = auto_class(described).from_config(described, trust_remote_code=trust_remote_code)
    return config.model_copy(update={"target_modules": tuple(sorted({own for _, own in linear_layers(model)}))})


def linear_layers(model: PreTrainedModel) -> list[tuple[str, str]]:
    """Return path and name of the language model's linear layers except its head. Raises `ModelError` for none."""
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    without = {head, *(module for tower in towers(model) for module in tower.modules())}
    paths = [
        name
        for name, module in model.named_modules()
        if type(module).__name__ in LINEAR and module not in without and not name.endswith(NEVER_CALLED)
    ]
    if not paths:
        raise ModelError(f"model.lora: {type(model).__name__} has no linear layers for adapters")
    return [(path, path.rpartition(".")[2]) for path in paths]


def _targeted(model: PreTrainedModel, config: LoraConfig) -> list[str]:
    """Paths of the layers that get adapters. Given a layer's own name, `peft` would include the experts' layers."""
    linear = linear_layers(model)
    known = {own for _, own in linear}
    if unknown := sorted(set(config.target_modules) - known):
        raise ModelError(
            f"model.lora.target_modules: the decoder has no linear layer {', '.join(unknown)}; "
            f"use {', '.join(sorted(known))}"
        )
    return [path for path, own in linear if own in config.target_modules or not config.target_modules]
