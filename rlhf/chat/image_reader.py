"""Images among tokens: the model's own processor computes each once, for engines and learner alike. A chat template
writes one mark for an image; the processor says which tokens take its place (transformers, `replace_image_token`)."""

from __future__ import annotations

import io
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from PIL import ImageOps

from rlhf.errors import ModelError, Raised, catch
from rlhf.images import Image, ImageFeatures, PlacedImage
from rlhf.types import Message, Prompt

REMEMBERED_BYTES = 2**29
"""Bytes of tensors that are kept for the next samples and turns."""
NO_TOWER = "the conversation has images, but the model runs without its tower; set model.tower: frozen (or trained)"
NOISE_PIXELS = (64, 48)
PROCESSOR = ("image_processor", "tokenizer", "image_token")


class ImageReader:
    """Reads images for the model in a folder, or of a hub name, by its processor. Raises `ModelError` for a model
    without one."""

    def __init__(self, path: str, *, trust_remote_code: bool = False, setting: str = "model.path") -> None:
        from transformers import AutoProcessor  # imports torch

        from rlhf.models.transformers_internals import processed_image

        load: Any = AutoProcessor
        self._process = processed_image
        made = catch(lambda: load.from_pretrained(path, trust_remote_code=trust_remote_code))
        if isinstance(made, Raised) or any(not hasattr(made, name) for name in PROCESSOR):
            why = f": {made.error}" if isinstance(made, Raised) else ""
            raise ModelError(f"{setting}={path} has no processor of images, so it cannot be shown any{why}")
        self._processor: Any = made
        self._mark = int(made.tokenizer.convert_tokens_to_ids(made.image_token))
        self._known: OrderedDict[str, ImageFeatures] = OrderedDict()
        self._lengths: dict[tuple[int, int], int] = {}
        self._bytes = 0

    def features(self, image: Image) -> ImageFeatures:
        """Return the image as the model gets it. Raises `ModelError` where the processor refuses it."""
        found = self._known.pop(image.sha256, None) or self._processed(image)
        self._known[image.sha256] = found
        while self._bytes > REMEMBERED_BYTES and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._bytes -= image_bytes(oldest)
        return found

    def expanded(self, token_ids: Sequence[int], images: Sequence[Image]) -> Prompt:
        """Return the tokens with those of each image in place of its mark. Raises `ModelError` unless there is a mark
        for each image."""
        marks = [place for place, token in enumerate(token_ids) if token == self._mark]
        if len(marks) != len(images):
            raise ModelError(
                f"a conversation with {len(images)} images has {len(marks)} places for one "
                f"({self._processor.image_token}) as the chat template writes it"
            )
        ids, placed, done = list[int](), list[PlacedImage](), 0
        for mark, image in zip(marks, images, strict=True):
            ids += token_ids[done:mark]
            placed.append(PlacedImage(features=self.features(image), start=len(ids)))
            ids += placed[-1].features.token_ids
            done = mark + 1
        return Prompt(token_ids=np.array([*ids, *token_ids[done:]], np.int32), images=tuple(placed))

    def added_tokens(self, image: Image) -> int:
        """Return by how much an image makes a prompt longer: the same for images of one size."""
        size = opened(image.data).size
        if size not in self._lengths:
            self._lengths[size] = len(self.features(image).token_ids) - 1
        return self._lengths[size]

    def _processed(self, image: Image) -> ImageFeatures:
        picture = opened(image.data)
        made = catch(lambda: self._process(self._processor, picture))
        if isinstance(made, Raised):
            size = f"{picture.width} x {picture.height}"
            raise ModelError(f"the model's processor refuses an image of {size} pixels: {made.error}") from made.error
        tensors, expansion = made
        arrays = {name: np.ascontiguousarray(value) for name, value in sorted(tensors.items())}
        found = ImageFeatures(
            image=image,
            tensors=arrays,
            checksum=tensors_checksum(arrays.values()),
            size=picture.size,
            token_ids=tuple(self._processor.tokenizer.encode(expansion, add_special_tokens=False)),
            mark=self._mark,
        )
        self._bytes += image_bytes(found)
        return found


def check_same_images(policy: str, other: str, *, trust_remote_code: bool = False, setting: str) -> None:
    """Check that another model, which the recipe names by `setting`, is shown an image as the policy is. Raises
    `ModelError`."""
    image = noise_image(NOISE_PIXELS)
    own = ImageReader(policy, trust_remote_code=trust_remote_code).features(image)
    found = ImageReader(other, trust_remote_code=trust_remote_code, setting=setting).features(image)
    if (own.checksum, own.token_ids) != (found.checksum, found.token_ids):
        raise ModelError(f"{setting}={other}: its processor makes something else of an image than the policy's")


def with_images(token_ids: Sequence[int], messages: Sequence[Message], reader: ImageReader | None) -> Prompt:
    """Return the prompt of messages that were rendered as `token_ids`. Raises `ModelError`, also for images without a
    `reader`."""
    images = [image for message in messages for image in message.images]
    if reader is not None:
        return reader.expanded(token_ids, images)
    if images:
        raise ModelError(NO_TOWER)
    return Prompt(token_ids=np.array(token_ids, np.int32))


def concatenated(before: Prompt, behind: Prompt) -> Prompt:
    """Return the tokens of both, one after the other."""
    shift = len(before.token_ids)
    moved = (replace(placed, start=placed.start + shift) for placed in behind.images)
    token_ids = np.concatenate([before.token_ids, behind.token_ids], dtype=np.int32)
    return replace(before, token_ids=token_ids, images=(*before.images, *moved))


def beginning(prompt: Prompt, length: int) -> Prompt:
    """Return the first `length` tokens."""
    inside = tuple(placed for placed in prompt.images if placed.stop <= length)
    return replace(prompt, token_ids=prompt.token_ids[:length], images=inside)


def opened(data: bytes) -> PIL.Image.Image:
    """Return an encoded image upright, in RGB."""
    with PIL.Image.open(io.BytesIO(data)) as picture:
        return ImageOps.exif_transpose(picture).convert("RGB")


def noise_image(size: tuple[int, int]) -> Image:
    """Return an image of noise, always the same for a size, width first."""
    pixels = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), np.uint8)
    written = io.BytesIO()
    PIL.Image.fromarray(pixels).save(written, "png")
    return Image(sha256=sha256(written.getvalue()).hexdigest(), data=written.getvalue())


def tensors_checksum(arrays: Iterable[NDArray[Any]]) -> int:
    found = 0
    for array in arrays:
        found = zlib.crc32(array.tobytes(), zlib.crc32(repr(array.shape).encode(), found))
    return found


def marked(token_ids: NDArray[np.int32], images: Sequence[PlacedImage]) -> NDArray[np.int32]:
    """Return the tokens with one mark in place of each image's tokens: the inverse of `ImageReader.expanded`."""
    parts, done = list[NDArray[np.int32]](), 0
    for placed in images:
        parts += [token_ids[done : placed.start], np.array([placed.features.mark], np.int32)]
        done = placed.stop
    return np.concatenate([*parts, token_ids[done:]])


def image_bytes(features: ImageFeatures) -> int:
    return sum(array.nbytes for array in features.tensors.values())
