"""Which quarter of an image is dark? The reply is one letter: `a` and `b` above, `c` and `d` below, from left to right.

Every image is drawn anew, with its own colours and noise. The drawings can be shuffled, as a control: then an image
says nothing about its answer.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from hashlib import sha256
from typing import Literal

import numpy as np
import PIL.Image

from rlhf.images import IMAGE_MARK, Image
from rlhf.types import Message, Task

QUARTERS = "abcd"
SPLITS = {"train": 0, "eval": 1, "demonstrations": 2}
"""Each split draws from its own random stream."""


def tasks(
    *,
    rows: int = 1024,
    pixels: int = 56,
    split: Literal["train", "eval"] = "train",
    shuffled: bool = False,
    seed: int = 0,
) -> list[Task]:
    """Return `rows` questions about square images of this side. If `shuffled`, each shows the image of another."""
    drawn = list(_drawn(rows, pixels, split, seed))
    order = np.random.default_rng(seed).permutation(rows) if shuffled else np.arange(rows)
    return [
        Task(
            id=f"quadrant/{split}/{number}",
            messages=(_asked(drawn[shown][0]),),
            answer=answer,
            row={"answer": answer},
        )
        for number, (shown, (_, answer)) in enumerate(zip(order.tolist(), drawn, strict=True))
    ]


def demonstrations(
    count: int, seed: int, *, pixels: int = 56, wrong_share: float = 0.85
) -> Iterator[tuple[Message, ...]]:
    """Iterate over conversations for a warm-up that teaches to look: `wrong_share` of them name the quarter after the
    dark one, and the others the dark one, so that the model knows where it is and has two habits, of which the reward
    picks one. Where the first quarter is dark the shares are the other way round: about 0.25 start out right."""
    rng = np.random.default_rng([seed, SPLITS["demonstrations"]])
    for image, answer in _drawn(count, pixels, "demonstrations", seed):
        share = 1 - wrong_share if answer == QUARTERS[0] else wrong_share
        said = QUARTERS[(QUARTERS.index(answer) + 1) % len(QUARTERS)] if rng.random() < share else answer
        yield _asked(image), Message(role="assistant", content=said)


def _asked(image: Image) -> Message:
    return Message(role="user", content=f"{IMAGE_MARK}dark?", images=(image,))


def _drawn(count: int, pixels: int, split: str, seed: int) -> Iterator[tuple[Image, str]]:
    rng = np.random.default_rng([seed, SPLITS[split]])
    half = pixels // 2
    for _ in range(count):
        quarter, light = int(rng.integers(len(QUARTERS))), rng.integers(128, 224, 3)
        canvas = np.broadcast_to(light, (pixels, pixels, 3)).astype(np.int64)
        top, left = quarter // 2 * half, quarter % 2 * half
        canvas[top : top + half, left : left + half] = rng.integers(0, 64, 3)
        canvas = np.clip(canvas + rng.integers(-16, 17, canvas.shape), 0, 255).astype(np.uint8)
        written = io.BytesIO()
        PIL.Image.fromarray(canvas).save(written, "png")
        data = written.getvalue()
        yield Image(sha256=sha256(data).hexdigest(), data=data), QUARTERS[quarter]
