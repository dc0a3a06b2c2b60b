"""What a message shows: texts and images, from the parts that environments, tools and agents send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf.data.row_images import read_image
from rlhf.errors import DataError, Raised, catch
from rlhf.images import IMAGE_MARK, Image

UNKNOWN = "\ufffd"
"""Unicode's replacement character: takes the place of an `IMAGE_MARK` in a text that is no place of an image."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A text with an `IMAGE_MARK` for each of its images, in order."""

    text: str = ""
    images: tuple[Image, ...] = ()


def shown(parts: Sequence[str | Image], between: str = "\n") -> Shown:
    """Return parts as one content. `between` joins texts; nothing is put between a text and an image."""
    images = tuple(part for part in parts if isinstance(part, Image))
    if not images:
        return Shown(between.join(part for part in parts if isinstance(part, str)))
    text, was_text = "", False
    for part in parts:
        is_text = isinstance(part, str)
        text += between * (is_text and was_text) + (without_marks(part) if isinstance(part, str) else IMAGE_MARK)
        was_text = is_text
    return Shown(text, images)


def without_marks(text: str) -> str:
    return text.replace(IMAGE_MARK, UNKNOWN)


def read_shown(value: object, where: str) -> Image:
    """Return an image given as `Image`, as a pillow image, or as encoded bytes, base64 or a `data:` URL. Nothing is
    fetched, no file is read. Raises `DataError`."""
    given = value.data if isinstance(value, Image) else value
    image = catch(lambda: read_image(given, None, where))
    if isinstance(image, Raised):  # pillow may raise anything for a picture that it cannot write
        known = isinstance(image.error, DataError)
        raise image.error if known else DataError(f"{where} cannot be read: {image.error}") from image.error
    return image


def read_images(given: Sequence[object], content: str) -> tuple[Image, ...]:
    """Return the images of a message with this content. Raises `DataError`, also unless it has one place for each."""
    if problem := misplaced(content, len(given)):
        raise DataError(problem)
    return tuple(read_shown(one, f"image {number} of a message") for number, one in enumerate(given, 1))


def misplaced(content: str, images: int) -> str | None:
    """Return what is wrong where a content has not one place for each of its images."""
    places = content.count(IMAGE_MARK)
    return None if places == images else f"a message has {images} images, and {places} places for them (U+FFFC)"
