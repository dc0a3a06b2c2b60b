"""Proves at load time that rows with images are computed as the model's own forward pass computes single sequences."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlhf.chat.image_reader import ImageReader, noise_image
from rlhf.images import ImageFeatures, RowImages
from rlhf.models.policy import RowForward
from rlhf.models.vision import placeholders

SIZES = ((64, 48), (48, 80))
"""Of the two images, in pixels."""
BEFORE, SHARED, AFTER = 3, 2, (9, 8, 7)
"""Number of text tokens before an image, of those after it that the first two sequences share, and of all after it."""


def rows_with_images(
    model: PreTrainedModel, rows: RowForward, reader: ImageReader
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the hidden states of three sequences with images, the second what branches off the first: as packed rows
    have them, and as the model's own forward pass has them."""
    one, other = (reader.features(noise_image(size)) for size in SIZES)
    first, second, third = _sequences(model, [one, one, other])
    shared = BEFORE + len(one.token_ids) + SHARED
    second[:shared] = first[:shared]
    ids = torch.cat([first, second[shared:], third])
    positions = torch.cat([torch.arange(len(first)), torch.arange(shared, len(second)), torch.arange(len(third))])
    starts = np.array([BEFORE, len(first) + len(second) - shared + BEFORE], np.int64)
    places = torch.arange(len(ids), device=model.device)
    images = RowImages(images=(one, other), starts=starts)
    _, row = rows.hidden(model, ids[None], positions.to(model.device)[None], places, images)
    found = torch.split(row, [len(first), len(second) - shared, len(third)])
    given = [own_arguments(model, ids, image, BEFORE) for ids, image in ((first, one), (second, one), (third, other))]
    expected = [model.base_model(**own, use_cache=False).last_hidden_state[0] for own in given]
    return list(found), [own[-len(part) :] for own, part in zip(expected, found, strict=True)]


def _sequences(model: PreTrainedModel, images: list[ImageFeatures]) -> list[Tensor]:
    settings = model.config.to_dict()
    taken = {value for name, value in settings.items() if name.endswith("_token_id") and isinstance(value, int)}
    plain = np.array([token for token in range(int(model.config.get_text_config().vocab_size)) if token not in taken])
    rng = np.random.default_rng(0)
    return [
        torch.from_numpy(np.concatenate([rng.choice(plain, BEFORE), one.token_ids, rng.choice(plain, after)])).to(
            model.device
        )
        for one, after in zip(images, AFTER, strict=True)
    ]


def own_arguments(model: PreTrainedModel, ids: Tensor, image: ImageFeatures, start: int) -> dict[str, Tensor]:
    """Return the arguments of the model's own forward pass for one sequence, in which the image begins at `start`."""
    base: Any = model.base_model
    kinds = torch.zeros_like(ids)
    kinds[start + placeholders(model, np.array(image.token_ids))] = 1
    tensors = {name: torch.from_numpy(array).to(model.device) for name, array in image.tensors.items()}
    given = {"mm_token_type_ids": kinds[None], "token_type_ids": kinds[None], **tensors}
    taken = inspect.signature(base.forward).parameters
    return {"input_ids": ids[None], **{name: value for name, value in given.items() if name in taken}}


def sees_later_tokens(model: PreTrainedModel) -> bool:
    """Whether a token of an image sees those after it, as in Gemma 3 and the larger Gemma 4."""
    settings = model.config.get_text_config()
    takes = inspect.signature(model.base_model.forward).parameters
    return "token_type_ids" in takes or getattr(settings, "use_bidirectional_attention", None) == "vision"
