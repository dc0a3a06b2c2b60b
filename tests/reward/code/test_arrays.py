"""Numbers and arrays of numpy cross by value, and what arrives lies within what it says."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest

from rlhf.reward.code.checking.arrays import array_of, is_of_numpy, parts_of_array


def there(value: Any) -> Any:
    """The value as it arrives."""
    assert is_of_numpy(value)
    return array_of(json.loads(json.dumps(parts_of_array(value))))


@pytest.mark.parametrize(
    "value",
    [
        np.arange(12).reshape(3, 4)[:, ::2],
        np.zeros((0, 5), np.float32),
        np.array(1.5),
        np.array([1 + 2j, np.nan], np.complex64),
        np.array([True, False]),
        np.arange(3, dtype=">i2"),
        np.eye(2).T,
    ],
)
def test_an_array_arrives_as_it_is(value: np.ndarray[Any, Any]) -> None:
    arrived = there(value)
    assert (arrived.dtype, arrived.shape) == (value.dtype, value.shape)
    assert np.array_equal(arrived, value, equal_nan=value.dtype.kind in "fc")
    assert arrived.flags.owndata


@pytest.mark.parametrize("value", [np.float64(0.1), np.float32(0.5), np.int64(-3), np.uint8(200), np.bool_(True)])
def test_a_number_is_one_of_python_s_where_numpy_is_not_loaded(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(there(value)) is type(value)
    parts = parts_of_array(value)
    monkeypatch.delitem(sys.modules, "numpy")
    assert array_of(parts) == value.item()
    assert type(array_of(parts)) is type(value.item())
    with pytest.raises(ValueError, match="import numpy"):
        array_of([parts[0], [1], parts[2]])  # type: ignore[index]


@pytest.mark.parametrize(
    "parts",
    [
        ["<i8", [2], "\0" * 8],
        ["<i8", [-1], ""],
        ["<i8", [True], "\0" * 8],
        ["<i8", [1 << 62, 0], ""],
        ["<i8", [1] * 33, "\0" * 8],
        ["<i8", None, ""],
        ["<i8", "1", "\0" * 8],
        ["<i8", [1.0], "\0" * 8],
        ["|O8", [1], "\0" * 8],
        ["<U2", [1], "\0" * 8],
        ["<i9", [1], "\0" * 9],
        ["<V8", [1], "\0" * 8],
        ["object", [1], "\0" * 8],
        ["<i8", [1], "\u1234" * 8],
        [None, [1], "\0" * 8],
        ["<i8", [1]],
        None,
    ],
)
@pytest.mark.parametrize("loaded", [True, False])
def test_what_does_not_fit_is_refused(parts: Any, loaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not loaded:
        monkeypatch.delitem(sys.modules, "numpy")
    with pytest.raises((TypeError, ValueError, LookupError)):
        array_of(parts)


def test_what_is_no_number_does_not_cross() -> None:
    for value in (np.array([object()]), np.array(["a"]), np.datetime64("2020-01-01"), np.zeros(1, [("a", "i4")])):
        assert parts_of_array(value) is None
    assert not any(map(is_of_numpy, (np, np.int64, 1.0, np.ma.masked_array([1]))))
