"""Which images an engine keeps: the controller decides, so that each is sent once."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf.chat.image_reader import image_bytes
from rlhf.engines.vllm.settings import GenerateRequest, ImagePlace
from rlhf.images import ImageFeatures, PlacedImage

KEPT_BYTES = 2**30
"""Bytes of tensors of images that an engine keeps for later requests."""


class KnownImages:
    """The images of one engine, those that were asked about longest ago first."""

    def __init__(self) -> None:
        self._asked: dict[str, ImageFeatures] = {}  # of requests that are not sent yet
        self._kept: dict[str, int] = {}  # their bytes

    def asked_about(self, images: Sequence[PlacedImage]) -> tuple[ImagePlace, ...]:
        """Return the places of a request's images."""
        self._asked |= {placed.features.image.sha256: placed.features for placed in images}
        return tuple(
            ImagePlace(placed.features.image.sha256, placed.start, placed.features.checksum) for placed in images
        )

    def sent_with(self, batch: Sequence[GenerateRequest]) -> tuple[list[ImageFeatures], list[str]]:
        """Return the images that the engine lacks for these requests, and the hashes of those that it forgets."""
        needed = {place.sha256: self._asked[place.sha256] for request in batch for place in request.images}
        new = [features for name, features in needed.items() if name not in self._kept]
        for name, features in needed.items():
            self._kept.pop(name, None)
            self._kept[name] = image_bytes(features)
        self._asked = {}
        forgotten = list[str]()
        for name in [name for name in self._kept if name not in needed]:
            if sum(self._kept.values()) <= KEPT_BYTES:
                break
            del self._kept[name]
            forgotten.append(name)
        return new, forgotten
