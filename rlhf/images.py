"""Images as data: encoded, as a model's processor returns them, and in their places among tokens."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

IMAGE_MARK = "\ufffc"
"""Unicode's own character for an object in a text: the place of an image in the content of a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An encoded image, known by the SHA-256 of its bytes."""

    sha256: str
    data: bytes = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageFeatures:
    """An image as the model's processor returns it, computed once for engines and learner: `tensors` by the names of
    the model's arguments, their `checksum`, the `size` in pixels, width first, and the `token_ids` that take the place
    of the one token `mark`, which the chat template writes for an image."""

    image: Image
    tensors: Mapping[str, NDArray[Any]]
    checksum: int
    size: tuple[int, int]
    token_ids: tuple[int, ...]
    mark: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedImage:
    """An image among tokens: its own begin at `start`."""

    features: ImageFeatures
    start: int

    @property
    def stop(self) -> int:
        """The end of the half-open range of its tokens."""
        return self.start + len(self.features.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowImages:
    """The `images` of rows `[R, L]`, each at the flat position of its first token, `starts` `int64 [I]`, in rising
    order. A further image has no place: a tower of which every rank holds a part must run on every rank."""

    images: tuple[ImageFeatures, ...]
    starts: NDArray[np.int64]

    def placed(self) -> Iterable[tuple[int, ImageFeatures]]:
        return zip(self.starts.tolist(), self.images, strict=False)


def shown_text(content: str, images: Sequence[Image]) -> str:
    """Return the content of a message for people and judges, with `[image 56x56]` (pixels) in place of each mark, or
    the begin of the hash of an image from records."""
    sizes = ("x".join(map(str, image_size(image))) if image.data else image.sha256[:8] for image in images)
    return with_names(content, sizes) if images else content


def with_names(content: str, names: Iterable[str]) -> str:
    """Return the content of a message with `[image NAME]` in place of the marks of its images."""
    for name in names:
        content = content.replace(IMAGE_MARK, f"[image {name}]", 1)
    return content


def image_size(image: Image) -> tuple[int, int]:
    """Return the size of an image as it is shown, upright, width first. Its header has it."""
    from PIL import ExifTags  # slow to import, and most runs have no images
    from PIL import Image as pillow

    with pillow.open(io.BytesIO(image.data)) as picture:
        lies = picture.getexif().get(ExifTags.Base.Orientation, 1) > 4
        return (picture.height, picture.width) if lies else picture.size


def row_images(placed: Sequence[tuple[int, ImageFeatures]], other: Iterable[PlacedImage]) -> RowImages | None:
    """Return the images of rows, each with the flat position of its first token; without any, one of the `other` images
    without a place."""
    inside = sorted(placed, key=lambda one: one[0])
    images = tuple(features for _, features in inside) or next(((one.features,) for one in other), ())
    return RowImages(images=images, starts=np.array([start for start, _ in inside], np.int64)) if images else None


def in_each_row(images: Sequence[PlacedImage], rows: int, length: int) -> RowImages | None:
    """Return the images of equal rows of this length."""
    return row_images([(row * length + one.start, one.features) for row in range(rows) for one in images], ())
