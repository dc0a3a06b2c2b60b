"""The images of recorded episodes as files `images/SHA256.png`, each once in a run folder, by the folders of parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

from rlhf.durable import private, private_folder, whole
from rlhf.errors import DataError
from rlhf.images import Image, ImageFeatures, PlacedImage, with_names
from rlhf.runs.folder import IMAGES
from rlhf.types import Failed, Group, Sample, Segment

KINDS: Mapping[str, tuple[bytes, str]] = {
    "png": (b"\x89PNG", "image/png"), "jpg": (b"\xff\xd8", "image/jpeg"), "webp": (b"RIFF", "image/webp"),
    "gif": (b"GIF8", "image/gif"), "bmp": (b"BM", "image/bmp"), "img": (b"", "application/octet-stream"),
}  # fmt: skip
"""How the files with a suffix begin, and their media type; the last is for all that browsers do not show."""
HASH = re.compile("[0-9a-f]{64}")
_WRITING = Lock()
"""Training and evaluation write their episodes in threads, and may have the same image."""
FeaturesOf = Callable[[Image], ImageFeatures]


def image_folder(recorded: Path) -> Path:
    """Return the folder with the images of the episodes in a folder of parts, in one of the parts, or in another file,
    which has them in its own folder."""
    return (recorded.parent.parent if recorded.name.startswith("part-") else recorded.parent) / IMAGES


def image_name(image: Image) -> str:
    return f"{image.sha256}.{next(suffix for suffix, (begin, _) in KINDS.items() if image.data.startswith(begin))}"


def write_images(folder: Path, images: Iterable[Image]) -> None:
    """Write each image that is not in the folder yet, durably. Raises `OSError`."""
    for image in {image.sha256: image for image in images if image.data}.values():
        path = folder / image_name(image)
        with _WRITING:
            if not path.exists():
                private_folder(folder)
                with whole(path) as temporary, open(temporary, "wb", opener=private) as file:
                    file.write(image.data)


def image_file(folder: Path, digest: str) -> Path | None:
    """Return the file of an image; None without one, and for a text that is no hash."""
    paths = (folder / f"{digest}.{suffix}" for suffix in KINDS)
    return next((path for path in paths if path.is_file()), None) if HASH.fullmatch(digest) else None


def recorded_file(folder: Path, digest: str) -> Path:
    """Return the file of an image. Raises `DataError` without one."""
    if (file := image_file(folder, digest)) is None:
        raise DataError(f"the image {digest} of recorded episodes is not in {folder}; copy that folder too")
    return file


def recorded_image(folder: Path, digest: str) -> Image:
    """Return an image of recorded episodes. Raises `DataError` for a missing file, and for one of another content."""
    file = recorded_file(folder, digest)
    data = file.read_bytes()
    if sha256(data).hexdigest() != digest:
        raise DataError(f"{file} is not the image that the episodes saw: its content has changed")
    return Image(sha256=digest, data=data)


def with_features(group: Group, folder: Path, features_of: FeaturesOf | None) -> Group:
    """Return a recorded group as the model sees it: its images are read from `folder` and processed again; None only
    reads them. Raises `DataError` for an image that cannot be read, or that has other tokens than those recorded."""
    read = cache(partial(recorded_image, folder))

    def placed(segment: Segment, one: PlacedImage) -> PlacedImage:
        image = read(one.features.image.sha256)
        features = features_of(image) if features_of else replace(one.features, image=image)
        if features.token_ids != tuple(segment.token_ids[one.start : one.stop].tolist()):
            raise DataError(
                f"{recorded_file(folder, features.image.sha256)} has {len(features.token_ids)} tokens by the model's "
                f"processor, and other ones in its episode, which has {one.stop - one.start}; start from the model "
                "that sampled it"
            )
        return replace(one, features=features)

    def seen(sample: Sample) -> Sample:
        played = sample.trajectory
        if isinstance(played, Failed) or not any(segment.images for segment in played.segments):
            return sample
        own = (replace(one, images=tuple(placed(one, image) for image in one.images)) for one in played.segments)
        return replace(sample, trajectory=replace(played, segments=tuple(own)))

    baseline = group.baseline and seen(group.baseline)
    return replace(group, samples=tuple(map(seen, group.samples)), baseline=baseline)


def recorded_text(message: Mapping[str, Any], images: Sequence[Mapping[str, Any]] | None) -> str:
    """Return the content of a recorded message for people, with the file of each image, or else its hash, in its place:
    `[image images/12ab….png]`. `images` are those of the episode."""
    files = {one["sha256"]: one["file"] for one in images or ()}
    return with_names(message["content"] or "", [files.get(one, one) for one in message.get("images") or ()])
