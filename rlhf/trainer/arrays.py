"""Names of numpy's array types; flat columns of samples as rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]


def mask_of(lengths: Ints) -> NDArray[np.bool_]:
    """Return where rows `[B, T]` of these `lengths` hold something."""
    mask: NDArray[np.bool_] = np.arange(max(lengths, default=0)) < lengths[:, None]
    return mask


def in_rows(flat: NDArray[Any], lengths: Ints) -> Doubles:
    """Return a flat column `[N]` of samples of these `lengths` as rows `[B, T]`, 0 after the last token."""
    mask = mask_of(lengths)
    rows = np.zeros(mask.shape)
    rows[mask] = flat
    return rows
