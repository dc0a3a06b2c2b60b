"""Tasks of the quadrant recipe that plant a fault in the controller that loads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from recipes.tasks import quadrant
from rlhf.chat.image_reader import ImageReader, noise_image
from rlhf.engines.known_images import KnownImages
from rlhf.images import ImageFeatures
from rlhf.types import Task


def tasks(*, fault: str, rows: int = 64) -> list[Task]:
    PLANTED[fault]()
    return quadrant.tasks(rows=rows)


def swapped() -> None:
    """Engines get the images of a batch in another order than their hashes."""

    def rolled(images: Sequence[ImageFeatures]) -> list[ImageFeatures]:
        others = [*images[1:], *images[:1]]
        return [replace(one, tensors=other.tensors) for one, other in zip(images, others, strict=True)]

    _change_sent(rolled)


def resized() -> None:
    """Engines get a smaller image."""
    process = ImageReader._processed

    def smaller(reader: ImageReader, image: Any) -> ImageFeatures:
        found = process(reader, image)
        return replace(found, tensors=process(reader, noise_image((28, 28))).tensors)

    ImageReader._processed = smaller  # type: ignore[method-assign]


def doubled() -> None:
    """The placeholders of the learner are expanded twice."""
    process = ImageReader._processed

    def twice(reader: ImageReader, image: Any) -> ImageFeatures:
        found = process(reader, image)
        return replace(found, token_ids=found.token_ids * 2)

    ImageReader._processed = twice  # type: ignore[method-assign]


def lost() -> None:
    ask = KnownImages.asked_about
    KnownImages.asked_about = lambda known, images: ask(known, images)[:-1]  # type: ignore[method-assign]


def _change_sent(change: Any) -> None:
    send = KnownImages.sent_with

    def changed(known: KnownImages, batch: Any) -> Any:
        images, forgotten = send(known, batch)
        return change(images), forgotten

    KnownImages.sent_with = changed  # type: ignore[method-assign]


PLANTED = {"swapped": swapped, "resized": resized, "doubled": doubled, "lost": lost}
