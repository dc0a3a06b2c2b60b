"""Images of requests. vLLM expands the chat template's mark of each image itself, and its model gets the tensors that
the learner has: both must find the same tokens at the same places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from transformers import BatchFeature
from vllm.inputs.engine import MultiModalInput, mm_input
from vllm.multimodal.inputs import MultiModalKwargsItem, MultiModalKwargsItems
from vllm.multimodal.processing.inputs import ProcessorInputs
from vllm.multimodal.processing.processor import BaseMultiModalProcessor, ResolvedPromptUpdate

from rlhf.chat.image_reader import marked, tensors_checksum
from rlhf.errors import ModelError, Raised, catch
from rlhf.images import ImageFeatures, PlacedImage
from rlhf.weight_sync.vllm_internals import ready_image, with_image_tokens

Ready = tuple[MultiModalKwargsItem, Sequence[ResolvedPromptUpdate]]
"""An image as vLLM's model gets it, and what takes the place of its mark."""


class EngineImages:
    """Images that an engine keeps until `forget`, by the hash of each; `placeholder` is the token at
    the places that the model replaces by what it sees."""

    def __init__(self, processor: BaseMultiModalProcessor[Any], placeholder: int) -> None:
        self._processor: Any = processor
        self._placeholder = placeholder
        self._kept: dict[str, tuple[ImageFeatures, int, Ready | Raised]] = {}
        self._shown: ImageFeatures | None = None
        # vLLM would process every image again, and on a GPU leave a part of that to the model.
        self._processor.info.get_hf_processor().image_processor.preprocess = self._tensors

    def keep(self, images: Iterable[ImageFeatures]) -> None:
        for one in images:
            if one.image.sha256 not in self._kept:
                ready = catch(partial(self._ready, one))
                self._kept[one.image.sha256] = one, tensors_checksum(one.tensors.values()), ready

    def forget(self, hashes: Iterable[str]) -> None:
        for one in hashes:
            self._kept.pop(one, None)

    def check_all_given(self, token_ids: NDArray[np.int32], images: Sequence[PlacedImage]) -> None:
        """Raise `ModelError` for a prompt with tokens of an image that it does not have."""
        given = sum(len(self._seen(np.array(placed.features.token_ids))) for placed in images)
        if (found := len(self._seen(token_ids))) != given:
            have = f"its {len(images)} images are {given} of them"
            raise ModelError(f"the prompt has {found} tokens of images, and {have}")

    def place(self, sha256: str, start: int, expected: int) -> PlacedImage:
        """Return the place of a kept image. Raises `ModelError` unless its tensors have the `expected` checksum."""
        if sha256 not in self._kept:
            raise ModelError(f"the engine lacks image {sha256[:12]} of the request")
        features, found, _ = self._kept[sha256]
        if found != expected:
            raise ModelError(f"the engine has other pixels than the learner for image {sha256[:12]}")
        return PlacedImage(features=features, start=start)

    def prompt(self, token_ids: NDArray[np.int32], images: Sequence[PlacedImage]) -> MultiModalInput:
        """Return vLLM's input for a prompt with images that it keeps. Raises `ModelError` where vLLM's tokens or places
        differ from those given, or it does not take an image's tensors as they are."""
        ready = list[Ready]()
        for placed in images:
            _, _, made = self._kept[placed.features.image.sha256]
            if isinstance(made, Raised):
                raise ModelError(f"vLLM does not take an image: {made.error}") from made.error
            ready.append(made)
        updates = [[replace(one, item_idx=place) for one in own] for place, (_, own) in enumerate(ready)]
        expanded = catch(lambda: with_image_tokens(self._processor, marked(token_ids, images).tolist(), updates))
        if isinstance(expanded, Raised):
            raise ModelError(f"vLLM cannot expand the images of a prompt: {expanded.error}") from expanded.error
        found, ranges = expanded
        if found != token_ids.tolist():
            raise ModelError(
                f"vLLM makes {len(found)} tokens of a prompt that has {len(token_ids)} tokens for the learner: its "
                f"{len(images)} images take others there"
            )
        own = [placed.start + at for placed in images for at in self._seen(token_ids[placed.start : placed.stop])]
        if own != [one.offset + at for one in ranges for at in _embedded(one)]:
            raise ModelError("vLLM puts the images of a prompt at other tokens than the learner")
        return mm_input(
            prompt_token_ids=found,
            mm_kwargs=MultiModalKwargsItems({"image": [item for item, _ in ready]}),
            mm_hashes={"image": [placed.features.image.sha256 for placed in images]},
            mm_placeholders={"image": ranges},
        )

    def has_sampled_one(self, token_ids: Sequence[int]) -> bool:
        """Whether a reply has a token that would be taken for an image in the next turn."""
        return self._placeholder in token_ids

    def _seen(self, token_ids: NDArray[np.int32]) -> list[int]:
        found: list[int] = np.flatnonzero(token_ids == self._placeholder).tolist()
        return found

    def _ready(self, features: ImageFeatures) -> Ready:
        self._shown = features
        blank = PIL.Image.new("RGB", features.size)
        inputs = ProcessorInputs([], self._processor.info.parse_mm_data({"image": [blank]}))
        item, updates = ready_image(self._processor, inputs)
        for name in features.tensors.keys() & item.keys():
            taken, given = item[name].data, torch.from_numpy(features.tensors[name])
            if not torch.equal(taken.flatten(), given.to(taken.dtype).flatten()):
                raise ModelError(f"vLLM changes {name} of an image")
        return item, updates

    def _tensors(self, images: Any, **named: Any) -> BatchFeature:
        assert self._shown is not None, "set by the only caller of the processor"
        return BatchFeature({name: torch.from_numpy(array) for name, array in self._shown.tensors.items()})


def _embedded(place: Any) -> list[int]:
    return list(range(place.length)) if place.is_embed is None else place.is_embed.nonzero()[:, 0].tolist()
