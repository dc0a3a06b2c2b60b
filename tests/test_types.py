"""What a reward may be, whoever gives it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from rlhf.types import finite_number

NUMBERS = [(2, 2.0), (True, 1.0), (np.float32(0.5), 0.5), (np.int64(-1), -1.0), (np.False_, 0.0), (Fraction(1, 2), 0.5)]
NUMBERS += [(float(np.finfo(np.float32).max), 3.4028234663852886e38)]


@pytest.mark.parametrize(("given", "number"), NUMBERS)
def test_a_finite_number_of_any_kind_is_a_plain_float(given: object, number: float) -> None:
    found = finite_number(given)
    assert (found, type(found)) == (number, float)


@pytest.mark.parametrize(
    "given",
    [
        None,
        "1",
        float("nan"),
        -float("inf"),
        np.float32("inf"),
        1e300,
        pytest.param(10**400, id="huge"),
        np.ones(1),
        1j,
    ],
)
def test_all_else_is_none(given: object) -> None:
    assert finite_number(given) is None
