"""Images of rows: read from files, bytes or base64, checked once, and put in their places in a conversation. Nothing is
fetched from a network."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import PIL.Image

from rlhf.data.columns import Row, column_value, from_json, short_value
from rlhf.data.config import DatasetConfig
from rlhf.errors import DataError
from rlhf.images import IMAGE_MARK, Image
from rlhf.types import Message

COLUMNS = ("images", "image")
"""Names that data sets give to the column of images."""
WRITTEN = "<image>"
"""How verl, LLaVA and others write the place of an image into a text."""
FROM_COLUMN = Image(sha256="", data=b"")
"""An image whose place is in the conversation; the row's column has it."""
MOST_PIXELS = 2**26
LONGEST_RATIO = 200
"""Between the sides of an image; Qwen's processors take no longer ones."""
FORMATS = ("PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "JPEG2000", "PPM", "ICO", "TGA")
"""Pillow's names of the formats that are read. Others are for other programs: it runs Ghostscript for an EPS."""
SHORTEST_BASE64 = 64


def with_row_images(config: DatasetConfig, row: Row, prompt: Sequence[Message], where: str) -> list[Message]:
    """Return the messages with the images of the row's column in their places: those of parts of type `image`, or of
    `<image>` in a text, or before the first text of the user. Raises `DataError`."""
    names = COLUMNS if config.images_column == "auto" else [config.images_column or ""]
    name = next((name for name in names if column_value(row, name) not in (None, [], "")), "")
    folder = Path(str(config.path)).expanduser()
    given = _listed(column_value(row, name)) if name else []
    images = [
        read_image(one, folder if folder.is_dir() else folder.parent, f"{where}, image {number} of column {name!r}")
        for number, one in enumerate(given, 1)
    ]
    messages = list(prompt)
    if images and not any(message.images for message in messages):
        messages = _with_places(messages, len(images))
    places = sum(message.images.count(FROM_COLUMN) for message in messages)
    if places != len(images):
        raise DataError(
            f"{where} has {len(images)} images in its column, and {places} places for them in its messages; write "
            "images_column: null to leave the column out"
        )
    found = iter(images)
    return [
        replace(one, images=tuple(next(found) if image is FROM_COLUMN else image for image in one.images))
        for one in messages
    ]


def _listed(value: Any) -> list[Any]:
    given = from_json(value)
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given]


def _with_places(messages: Sequence[Message], images: int) -> list[Message]:
    if any(WRITTEN in message.content for message in messages if message.role != "assistant"):
        return [one if one.role == "assistant" else _marked(one) for one in messages]
    first = next((place for place, one in enumerate(messages) if one.role == "user"), 0)
    shown = replace(
        messages[first], content=IMAGE_MARK * images + messages[first].content, images=(FROM_COLUMN,) * images
    )
    return [*messages[:first], shown, *messages[first + 1 :]]


def _marked(message: Message) -> Message:
    content = message.content.replace(WRITTEN, IMAGE_MARK)
    return replace(message, content=content, images=(FROM_COLUMN,) * content.count(IMAGE_MARK))


def read_image(value: Any, folder: Path | None, where: str) -> Image:
    """Return an image given as bytes, as base64 or a `data:` URL, as a file (relative to `folder`; None: no file is
    read), or as an object with one of these, as `datasets` and OpenAI write it. Raises `DataError` for anything else,
    and for an image that cannot be shown to a model."""
    if isinstance(value, Mapping):
        kept = [value[key] for key in ("bytes", "image", "image_url", "url", "path") if value.get(key) is not None]
        return read_image(kept[0] if kept else None, folder, where)
    if isinstance(value, PIL.Image.Image):
        written = io.BytesIO()
        value.save(written, "png")
        value = written.getvalue()
    data = value if isinstance(value, bytes) else _from_text(value, folder, where)
    _check(data, where)
    return Image(sha256=sha256(data).hexdigest(), data=data)


def _from_text(value: Any, folder: Path | None, where: str) -> bytes:
    if not isinstance(value, str | os.PathLike):
        raise DataError(f"{where} must be a file, bytes or base64, but reads {short_value(value)}")
    text = str(value)
    if text.startswith(("http://", "https://", "s3://", "gs://", "hf://", "ftp://")):
        raise DataError(f"{where} is on a network ({short_value(text)}), from which nothing is fetched: download it")
    head, _, encoded = text.rpartition("base64,")
    if head.startswith("data:") or len(text) >= SHORTEST_BASE64:
        try:
            return base64.b64decode(encoded, validate=True)
        except ValueError:
            if head.startswith("data:"):
                raise DataError(f"{where} is not base64: {short_value(text)}") from None
    if folder is None:
        raise DataError(f"{where} must be base64 or a data: URL, but reads {short_value(text)}")
    try:
        return (folder / Path(text.removeprefix("file://")).expanduser()).read_bytes()
    except (OSError, ValueError) as error:  # a null byte in a name
        why = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{where} is the file {short_value(text)}: {why}") from None


def _check(data: bytes, where: str) -> None:
    """Raise `DataError` unless the bytes are one whole image of 8 bits a channel."""
    if not data:
        raise DataError(f"{where} is empty")
    try:
        with PIL.Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            fault = _fault(picture)
            if not fault:
                picture.load()
    except PIL.UnidentifiedImageError:
        raise DataError(f"{where} is in no format that pillow reads (an SVG is drawn first)") from None
    except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        raise DataError(f"{where} cannot be decoded: {error}") from None
    if fault:
        raise DataError(f"{where} {fault}")


def _fault(picture: PIL.Image.Image) -> str:
    width, height = picture.size
    size = f"{width} x {height}"
    if width * height > MOST_PIXELS:
        return f"has {size} pixels; the most is {MOST_PIXELS:,} pixels"
    if max(width, height) > LONGEST_RATIO * min(width, height):
        return f"has {size} pixels; a side may be {LONGEST_RATIO} times as long as the other"
    if getattr(picture, "n_frames", 1) > 1:
        return "is animated; give the frames one by one"
    if picture.mode[0] in "IF":
        return "has more than 8 bits a channel; convert it to 8"
    return ""
