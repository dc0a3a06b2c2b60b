"""A group of episodes whose prompt has an image, as a rollout leaves it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlhf.chat.image_reader import noise_image
from rlhf.images import IMAGE_MARK, Image, ImageFeatures, PlacedImage
from rlhf.types import Group, Message, Ticket
from tests.trainer.made import made_groups

IMAGE = noise_image((30, 20))
PLACE = 1
"""Where the image's tokens begin."""


def features_of(image: Image) -> ImageFeatures:
    """The image as a processor returns it that makes three tokens of every image."""
    tensors = {"pixel_values": np.frombuffer(image.data[:8], np.uint8)}
    return ImageFeatures(image=image, tensors=tensors, checksum=7, size=(30, 20), token_ids=(9, 9, 9), mark=9)


def seeing_group(ordinal: int = 0) -> Group:
    (group,) = made_groups(1, 3, seed=ordinal)
    asked = Message(role="user", content=f"{IMAGE_MARK}dark?", images=(IMAGE,))
    seen = PlacedImage(features=features_of(IMAGE), start=PLACE)
    task, samples = replace(group.task, messages=(asked,)), []
    for sample in group.samples:
        (segment,) = sample.trajectory.segments
        segment.token_ids[seen.start : seen.stop] = 9
        segments = (replace(segment, images=(seen,)),)
        samples.append(replace(sample, trajectory=replace(sample.trajectory, task=task, segments=segments)))
    return replace(group, task=task, samples=tuple(samples), ticket=Ticket(ordinal=ordinal, version=0))
