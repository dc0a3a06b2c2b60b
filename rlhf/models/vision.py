"""Images in packed rows: what a model's tower sees takes the place of their tokens' embeddings, and rotary positions of
three dimensions (arXiv 2409.12191) are computed for each sequence alone."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from rlhf.errors import ModelError
from rlhf.images import ImageFeatures, RowImages
from rlhf.models.attention import decoder_of
from rlhf.models.sequence_rows import SequenceRows, sequence_rows

Seen = tuple[Tensor, ...]
"""What a tower sees in an image: `[n, H]` in place of its tokens' embeddings, then what some models add to the hidden
states of their first layers (Qwen3-VL's deepstack, arXiv 2406.04334)."""


class Vision:
    """A model's tower. What a `frozen` one sees is computed once for an image and kept until `forget`; `computed`
    counts the images."""

    def __init__(self, *, frozen: bool) -> None:
        self.frozen, self.computed = frozen, 0
        self._kept: dict[str, Seen] = {}

    def forget(self) -> None:
        self._kept.clear()

    def see(self, model: PreTrainedModel, images: Sequence[ImageFeatures]) -> dict[str, Seen]:
        """Return what the tower sees in each of these images, by hash."""
        unique = {one.image.sha256: one for one in images}
        new = [one for name, one in unique.items() if name not in self._kept]
        tower_is_shared = any(hasattr(weight, "ds_id") for weight in model.parameters())
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            seen = self._computed(model, new or (list(images[:1]) if tower_is_shared else []), tower_is_shared)
        if self.frozen:
            self._kept |= seen
        return self._kept | seen

    def _computed(self, model: PreTrainedModel, images: Sequence[ImageFeatures], one_call: bool) -> dict[str, Seen]:
        """Images whose tensors differ in their first dimension alone go through the tower together."""
        found: dict[str, Seen] = {}
        calls = [list(own) for _, own in groupby(sorted(images, key=_form), key=_form)]
        if one_call and len(calls) > 1 and torch.distributed.get_world_size() > 1:
            raise ModelError("images of different forms are seen in several passes, which ranks of ZeRO 3 cannot share")
        for own in calls:
            parts = _see(model, {name: np.concatenate([one.tensors[name] for one in own]) for name in own[0].tensors})
            counts = [len(placeholders(model, np.array(one.token_ids))) for one in own]
            if any(len(part) != sum(counts) for part in parts):
                raise ModelError(f"the tower sees {len(parts[0])} tokens in images that have {sum(counts)}")
            split = [torch.split(part, counts) for part in parts]
            found |= {one.image.sha256: seen for one, *seen in zip(own, *split, strict=True)}
            self.computed += len(own)
        return found


def _form(features: ImageFeatures) -> str:
    return repr([(name, array.shape[1:]) for name, array in features.tensors.items()])


def _see(model: PreTrainedModel, tensors: dict[str, NDArray[Any]]) -> Seen:
    base: Any = model.base_model
    taken = inspect.signature(base.get_image_features).parameters
    given = {name: torch.from_numpy(array).to(model.device) for name, array in tensors.items() if name in taken}
    output = base.get_image_features(**given, return_dict=True)
    deeper = vars(output).get("deepstack_features") or ()
    return tuple(map(_flat, (output.pooler_output, *deeper)))


def _flat(seen: Any) -> Tensor:
    """Join what was seen in each image, or in each of its tiles: `[n, H]`."""
    parts = [seen] if isinstance(seen, Tensor) else seen
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


def placeholders(model: PreTrainedModel, token_ids: NDArray[Any]) -> NDArray[np.int64]:
    """Return the places of an image's own tokens among those that the processor writes for it."""
    return np.flatnonzero(token_ids == model.config.image_token_id)


def check_shown(model: PreTrainedModel, token_ids: Tensor) -> None:
    """Raise `ModelError` for rows without images that have tokens of one."""
    if count := int((token_ids == model.config.image_token_id).sum()):
        raise ModelError(f"rows have {count} tokens of images, but no image")


def image_arguments(
    model: PreTrainedModel, token_ids: Tensor, position_ids: Tensor | None, rows: RowImages, vision: Vision
) -> dict[str, Any]:
    """Return the decoder's arguments for rows `[R, L]` of `token_ids`, packed as `position_ids` say, or one sequence
    each: embeddings, positions, and what is added in the first layers."""
    embeddings: Tensor = decoder_of(model).get_input_embeddings()(token_ids)  # type: ignore[operator]
    seen = vision.see(model, rows.images)
    placed = list(rows.placed())
    places = [start + place for start, one in placed for place in placeholders(model, np.array(one.token_ids)).tolist()]
    where = torch.tensor(places, dtype=torch.long, device=token_ids.device)
    if (count := int((token_ids == model.config.image_token_id).sum())) != len(places):
        raise ModelError(f"rows have {count} tokens of images, but their {len(placed)} images have {len(places)}")
    columns = zip(*(seen[one.image.sha256] for _, one in placed), strict=True)
    first, *deeper = [torch.cat(column) for column in columns] or [embeddings.new_zeros(0, embeddings.shape[-1])]
    whole = embeddings.flatten(0, 1).index_put((where,), first.to(embeddings.dtype)).view_as(embeddings)
    if not placed:  # depends on every weight, as padding must: see `PolicyModel.forward`
        whole = whole + 0 * sum(part.sum() for one in rows.images for part in seen[one.image.sha256])
    given: dict[str, Any] = {"inputs_embeds": whole}
    config = model.config.get_text_config()
    if deeper:
        mask = torch.zeros(token_ids.numel(), dtype=torch.bool, device=token_ids.device)
        mask[where] = True
        given |= {"visual_pos_masks": mask.view_as(token_ids), "deepstack_visual_embeds": deeper}
    if getattr(config, "hidden_size_per_layer_input", None):  # further embeddings for every layer, of the text alone
        text = token_ids.flatten().index_fill(0, where, config.pad_token_id).view_as(token_ids)
        given["per_layer_inputs"] = decoder_of(model).get_per_layer_inputs(text, None)  # type: ignore[operator]
    positions = _rotary_positions(model, token_ids, position_ids, rows)
    return given | ({} if positions is None else {"position_ids": positions})


def apart(rows: SequenceRows, images: RowImages) -> RowImages:
    """Return the images of packed rows in rows of one sequence: those of a shared beginning once for each."""
    sources, found = rows.sources.cpu().numpy(), list[tuple[int, ImageFeatures]]()
    for start, features in images.placed():
        here = sources == start
        here[:, 1:] &= start > 0  # padding has the place 0 too
        found += [(int(place), features) for place in np.flatnonzero(here)]
    found.sort(key=lambda one: one[0])
    starts = np.array([place for place, _ in found], np.int64)
    return RowImages(images=(*(features for _, features in found), *images.images[len(images.starts) :]), starts=starts)


def _rotary_positions(
    model: PreTrainedModel, token_ids: Tensor, position_ids: Tensor | None, images: RowImages
) -> Tensor | None:
    """Return the positions `[4, R, L]` of a model that gives images three dimensions, after those of the text; else
    `position_ids`."""
    base: Any = model.base_model
    if not hasattr(base, "get_rope_index"):
        return position_ids
    rows = None if position_ids is None else sequence_rows(position_ids)
    own_ids, own = (rows.apart(token_ids), apart(rows, images)) if rows else (token_ids, images)
    kinds = torch.zeros(own_ids.numel(), dtype=torch.long, device=token_ids.device)
    for start, one in own.placed():
        kinds[torch.from_numpy(start + placeholders(model, np.array(one.token_ids)))] = 1
    grids = [one.tensors["image_grid_thw"] for _, one in own.placed()]
    spatial, _ = base.get_rope_index(
        own_ids,
        mm_token_type_ids=kinds.view_as(own_ids),
        image_grid_thw=torch.from_numpy(np.concatenate(grids)).to(token_ids.device) if grids else None,
    )
    if rows is None or position_ids is None:
        text = torch.arange(token_ids.shape[1], device=token_ids.device).expand_as(token_ids)
        return torch.cat([text[None], spatial])
    packed = spatial.flatten(1)[:, rows.places].view(3, *token_ids.shape)
    return torch.cat([position_ids[None], packed])
