"""The weights of a DeepSpeed engine as whole tensors, for any ZeRO stage: list, iterate, change and restore them.

A tensor that is sent or saved has a Hugging Face name and a `Source`: a parameter, with LoRA also one with its adapter
added, or a part of an adapter only. Everything that gathers is collective under ZeRO-3: all ranks call it, at the same
point.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from rlhf.errors import ModelError
from rlhf.models.deepspeed_internals import local_part, release, shard_index, weight_bytes, whole_shape, whole_to_read
from rlhf.models.lora import HasModel, LowRank, hugging_face_name, low_ranks
from rlhf.models.towers import towers
from rlhf.weight_sync import perturbation
from rlhf.weight_sync.types import Manifest, TensorSpec

Named = list[tuple[str, nn.Parameter]]
SyncForm = Literal["merged", "adapter"]
"""All tensors of the model with adapters added (`merged`), or only the adapters."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """The tensor called `name` is `factor * weight + added`, computed in float32 where there is anything to compute."""

    name: str
    weight: Tensor
    added: LowRank | None = None
    factor: float = 1.0

    @property
    def parameters(self) -> list[Tensor]:
        return [self.weight, self.added.a, self.added.b] if self.added else [self.weight]

    def whole(self) -> Tensor:
        """Return the tensor in the weight's precision, once the parameters are gathered."""
        weight = self.weight.detach()
        if self.added is None:
            return weight if self.factor == 1 else (self.factor * weight.float()).to(weight.dtype)
        return (self.factor * weight.float() + self.added.change()).to(weight.dtype)


def held_weights(policy: HasModel) -> Named:
    """Every parameter of the language model by its name in this process, tied ones once."""
    still = {id(weight) for _, weight in _tower_weights(policy)}
    return [(name, weight) for name, weight in policy.model.named_parameters() if id(weight) not in still]


def held_constants(policy: HasModel) -> list[tuple[str, Tensor]]:
    """Tensors of a model's folder that training never changes, the correction of a router for instance. Engines have
    them from the start."""
    saved, buffers = policy.model.state_dict().keys(), policy.model.named_buffers()
    return [*_tower_weights(policy), *(one for one in buffers if one[0] in saved and one[1].is_floating_point())]


def _tower_weights(policy: HasModel) -> Named:
    frozen = (weight for tower in towers(policy.model) for weight in tower.parameters() if not weight.requires_grad)
    still = set(map(id, frozen))
    return [(name, weight) for name, weight in policy.model.named_parameters() if id(weight) in still]


def sources(policy: HasModel, form: SyncForm = "merged") -> list[Source]:
    """Return the tensors that a weight sync in this form sends. An adapter's `B` is sent scaled, so that engines only
    multiply."""
    return _merged(policy) if form == "merged" else _adapters(policy, scaled=True)


def publish_manifest(policy: HasModel, form: SyncForm = "merged") -> Manifest:
    """Return the manifest of a weight sync, in order, by the names of the model's folder. Needs no communication."""
    return _manifest(policy, sources(policy, form), form)


def published_tensors(policy: HasModel, bucket_bytes: int, form: SyncForm = "merged") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a weight sync, gathered bucket by bucket on every rank. A tensor is valid until the next one is
    requested."""
    return _saved(policy, _walk(sources(policy, form), bucket_bytes), form)


def folder_manifest(policy: HasModel) -> Manifest:
    """Return the tensors of `folder_tensors`, in order. Needs no communication."""
    return _manifest(policy, _folder(policy), "merged")


def folder_tensors(policy: HasModel, bucket_bytes: int) -> Iterator[tuple[str, Tensor]]:
    """Everything in the model's folder, with adapters merged, gathered like `published_tensors`."""
    return _saved(policy, _walk(_folder(policy), bucket_bytes), "merged")


def whole_adapter(policy: HasModel, bucket_bytes: int, *, keep: bool) -> dict[str, Tensor]:
    """Return a copy of the adapters on the CPU, with `B` unscaled as in `peft`. Empty without LoRA."""
    found = _walk(_adapters(policy, scaled=False), bucket_bytes)
    return {name: tensor.to("cpu", copy=True) for name, tensor in found if keep}


def perturb(policy: HasModel, form: SyncForm = "merged", name_of_policy: str = "") -> None:
    """Add noise to every weight that a weight sync in this form depends on, to those of another policy other noise:
    adapters that began equal would hide that an engine confuses them. Every rank changes its own part, without
    gathering. Float32 master weights are unchanged: use this only for weights that `put_back` restores."""
    release(weight for _, weight in held_weights(policy))
    with torch.no_grad():
        for name, weight in _perturbed(policy, form):
            part = local_part(weight)
            perturbation.add_noise(
                name_of_policy + name, part, whole_shape(weight), start=shard_index(weight) * part.numel()
            )


def snapshot(policy: HasModel, form: SyncForm = "merged") -> list[Tensor]:
    """Return a bitwise copy, in host memory, of this rank's part of every weight that `perturb` changes."""
    return [local_part(weight).detach().to("cpu", copy=True) for _, weight in _perturbed(policy, form)]


def put_back(policy: HasModel, saved: Sequence[Tensor], form: SyncForm = "merged") -> None:
    """Undo what `perturb` did since `snapshot`, bit for bit."""
    release(weight for _, weight in held_weights(policy))
    with torch.no_grad():
        for (_, weight), old in zip(_perturbed(policy, form), saved, strict=True):
            local_part(weight).copy_(old)


def _perturbed(policy: HasModel, form: SyncForm) -> Named:
    return [(name, weight) for name, weight in held_weights(policy) if form == "merged" or not hugging_face_name(name)]


def _saved(policy: HasModel, named: Iterable[tuple[str, Tensor]], form: SyncForm) -> Iterator[tuple[str, Tensor]]:
    """Tensors of the model as its folder has them; adapters are named after their layers."""
    for name, tensor in named:
        yield from as_saved(policy.model, name, tensor).items() if form == "merged" else [(name, tensor)]


def as_saved(model: nn.Module, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return a weight of `model`, called `name` in memory, as the tensors of its folder: itself, or views of its parts.

    transformers stacks the experts of a layer in one tensor and renames parts of some models. Folders, and engines that
    load them, have the tensors one by one. transformers converts names when it loads a model, and reverts that here."""
    if not isinstance(model, PreTrainedModel):
        return {name: tensor}
    saved: dict[str, Tensor] = revert_weight_conversion(model, {name: tensor})
    return saved


def _manifest(policy: HasModel, found: Sequence[Source], form: SyncForm) -> Manifest:
    shapes = ((one.name, torch.empty(whole_shape(one.weight), dtype=one.weight.dtype, device="meta")) for one in found)
    tensors = tuple(
        TensorSpec(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape))
        for name, tensor in _saved(policy, shapes, form)
    )
    joined = [name for name, times in Counter(spec.name for spec in tensors).items() if times > 1]
    if joined:
        raise ModelError(f"transformers saves several weights of the model as one, {joined[0]}: not supported here")
    return Manifest(tensors=tensors)


def _folder(policy: HasModel) -> list[Source]:
    return [*_merged(policy), *(Source(name=name, weight=constant) for name, constant in held_constants(policy))]


def _merged(policy: HasModel) -> list[Source]:
    added = low_ranks(policy.model)
    named = ((hugging_face_name(name), weight) for name, weight in held_weights(policy))
    return [Source(name=name, weight=weight, added=added.get(name)) for name, weight in named if name]


def _adapters(policy: HasModel, *, scaled: bool) -> list[Source]:
    found: list[Source] = []
    for name, low in low_ranks(policy.model).items():
        layer = name.removesuffix(".weight")
        found.append(Source(name=f"{layer}.lora_A.weight", weight=low.a))
        found.append(Source(name=f"{layer}.lora_B.weight", weight=low.b, factor=low.scaling if scaled else 1.0))
    return found


def _walk(found: Sequence[Source], bucket_bytes: int) -> Iterator[tuple[str, Tensor]]:
    for bucket in _buckets(found, bucket_bytes):
        with whole_to_read([weight for source in bucket for weight in source.parameters]):
            yield from ((source.name, source.whole()) for source in bucket)


def _buckets(found: Sequence[Source], bucket_bytes: int) -> Iterator[list[Source]]:
    """Cut the sources in order so that the parameters of a bucket fill at most `bucket_bytes`, or it is one source."""
    bucket: list[Source] = []
    filled = 0
    for source in found:
        size = sum(map(weight_bytes, source.parameters))
        if bucket and filled + size > bucket_bytes:
            yield bucket
            bucket, filled = [], 0
        bucket.append(source)
        filled += size
    if bucket:
        yield bucket
