"""Arrays that arrive from the other process lie within what it may say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlhf.reward.code.checking.arrays import place_in, view

OWNER = np.arange(12, dtype=np.int64)
EMPTY = np.zeros(0, np.int64)


@pytest.mark.parametrize(
    ("owner", "shape", "steps", "start"),
    [
        (EMPTY, [1], [8], 0),
        (EMPTY, [4], [8], 8_000_000),
        (EMPTY, [2, 2], [16, 8], 0),
        (EMPTY, [], [], 0),
        (OWNER, [13], [8], 0),
        (OWNER, [12], [8], 8),
        (OWNER, [2], [8], -8),
        (OWNER, [3], [-8], 8),
        (OWNER, [1], [8], 96),
        (OWNER, [1], [8], 4),
        (OWNER, [2], [2**63], 0),
        (OWNER, [2**62], [2**62], 0),
        (OWNER, [-1], [8], 0),
        (OWNER, [0], [8], 104),
        (OWNER, [2], [8, 8], 0),
        (OWNER, [1] * 33, [8] * 33, 0),
        (OWNER[::2], [2], [8], 0),
        (np.array(["a", "b"]), [1], [4], 0),
        (np.array([object()]), [1], [8], 0),
        (OWNER, [True], [8], 0),
        ([1, 2], [1], [8], 0),
    ],
)
def test_a_view_beyond_its_array_is_refused(owner: Any, shape: list[int], steps: list[int], start: int) -> None:
    with pytest.raises((TypeError, ValueError)):
        view([owner, shape, steps, start, True], np)


@pytest.mark.parametrize(
    "value",
    [
        OWNER[2:5],
        OWNER[::-1],
        OWNER[10:1:-3],
        OWNER.reshape(3, 4)[:, 1:],
        OWNER.reshape(3, 4).T,
        OWNER[3:3],
        OWNER[5:6],
        np.broadcast_to(OWNER[4:5], (7,)),
        EMPTY[:],
        OWNER.reshape(3, 4)[1, 2, None, None],
    ],
)
def test_every_view_that_numpy_makes_is_made_again(value: Any) -> None:
    owner = EMPTY if value.base is EMPTY else OWNER
    made = view([owner, *place_in(owner, value)], np)
    assert made.shape == value.shape
    assert np.array_equal(made, value)
    assert not made.size or np.shares_memory(made, owner)
