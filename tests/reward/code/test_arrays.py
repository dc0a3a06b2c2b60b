"""Numbers and arrays of numpy cross by value, and what arrives lies within what it says."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import numpy as np
import pytest

from rlhf.reward.code.checking.arrays import empty_array, is_array, number_of, parts_of_number, set_array
from rlhf.reward.code.checking.lines import in_json, of_json
from rlhf.reward.code.checking.values import NoValue, Shared


def refuse(*_: Any) -> Any:
    raise NoValue("no value")


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
def test_an_array_arrives_as_it_is_and_what_changes_is_told(value: np.ndarray[Any, Any]) -> None:
    sides = Shared(0, refuse, refuse), Shared(1, refuse, refuse)
    arrived = sides[1].received(of_json(in_json(sides[0].message(value))))
    assert (arrived.dtype, arrived.shape) == (value.dtype, value.shape)
    assert np.array_equal(arrived, value, equal_nan=value.dtype.kind in "fc")
    arrived[...] = 0
    assert sides[0].received(of_json(in_json(sides[1].message([arrived]))))[0] is value
    assert not value.any()


@pytest.mark.parametrize("value", [np.float64(0.1), np.float32(0.5), np.int64(-3), np.uint8(200), np.bool_(True)])
def test_a_number_is_numpy_s_own_and_none_where_it_is_not_loaded(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = json.loads(json.dumps(parts_of_number(value)))
    assert type(number_of(parts)) is type(value)
    assert number_of(parts) == value
    monkeypatch.delitem(sys.modules, "numpy")
    with pytest.raises(ValueError, match=re.escape(parts[0])):
        number_of(parts)
    with pytest.raises(ValueError, match="no array"):
        empty_array([parts[0], [1]])


FORMS = [
    *(["<i8", [-1]], ["<i8", [True]], ["<i8", [1 << 62, 2]], ["<i8", [1 << 40]], ["<i8", [1] * 33], ["<i8", None]),
    *(["<i8", "1"], ["<i8", [1.0]], ["|O8", [1]], ["<U2", [1]], ["<i9", [1]], ["<V8", [1]], ["object", [1]], None),
    *([None, [1]], ["<i8"], ["<i8,<i8", [1]], [["<i8"], [1]]),
]


@pytest.mark.parametrize("form", FORMS, ids=repr)
@pytest.mark.parametrize("loaded", [True, False])
def test_a_form_that_is_none_is_refused(form: Any, loaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not loaded:
        monkeypatch.delitem(sys.modules, "numpy")
    with pytest.raises((TypeError, ValueError, LookupError)):
        empty_array(form)


@pytest.mark.parametrize("content", ["", "\0" * 8, "\0" * 17, "\u1234" * 16, None, ["\0" * 16]])
def test_content_that_does_not_fit_is_refused(content: Any) -> None:
    array = np.ones(2)
    with pytest.raises((TypeError, ValueError, AttributeError)):
        set_array(array, content)
    assert array.tolist() == [1, 1]


@pytest.mark.parametrize("parts", [["<i8", ""], ["<i8", "\0" * 9], ["|O8", "\0" * 8], ["<c9", "\0" * 9], None, ["<i8"]])
@pytest.mark.parametrize("loaded", [True, False])
def test_a_number_that_is_none_is_refused(parts: Any, loaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not loaded:
        monkeypatch.delitem(sys.modules, "numpy")
    with pytest.raises((TypeError, ValueError, LookupError)):
        number_of(parts)


def test_what_is_no_number_does_not_cross() -> None:
    for value in (np.array([object()]), np.array(["a"]), np.zeros(1, [("a", "i4")]), np.ma.masked_array([1]), 1.0):
        assert not is_array(value)
    for value in (np.datetime64("2020-01-01"), np.str_("a"), np, np.int64, 1.0):
        assert parts_of_number(value) is None
