"""A row crosses to a scorer's process as values: what comes out is what went in, and nothing else goes in."""

from __future__ import annotations

import datetime
import decimal
import pickle
from typing import Any

import numpy as np
import pytest

from rlhf.reward.row_lines import TAG, read_line, request_lines

UTC = datetime.UTC
VALUES: list[Any] = [
    None, True, 7, 10**30, 0.1, "é\ud800\n", b"\0\xff", [1, ["a"]], {"a": {"b": 1}}, {1: "a", (2, "b"): None},
    {TAG: ["bytes", "AA=="]}, (1, (2,)), {1, 2}, frozenset({"a"}), datetime.timedelta(days=1, microseconds=3),
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6, UTC), datetime.date(2026, 1, 2), datetime.time(3, 4),
    decimal.Decimal("1.10"),
]  # fmt: skip


def through(episodes: Any, row: Any) -> Any:
    (line,) = request_lines([episodes], row)
    return read_line(line)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_out_as_it_went_in(value: Any) -> None:
    episodes, row = through([{"response": "r\ud800", "state": value}], {"column": value})
    assert (episodes, row["column"], type(row["column"])) == (
        [{"response": "r\ud800", "state": value}], value, type(value),
    )  # fmt: skip


@pytest.mark.parametrize("value", [np.arange(6).reshape(2, 3), np.float32(0.5), np.array([True]), np.zeros((0, 2))])
def test_an_array_of_numbers_does_too(value: Any) -> None:
    _, row = through([], {"column": value})
    assert np.array_equal(row["column"], value)
    assert row["column"].dtype == value.dtype


def test_an_infinity_in_a_row_is_one_in_the_worker() -> None:
    assert through([], {"x": float("inf")})[1] == {"x": float("inf")}


@pytest.mark.parametrize("value", [object(), lambda: 1, np.array([object()]), [1, {"a": range(3)}]])
def test_what_is_no_data_is_refused_by_the_name_of_its_column(value: Any) -> None:
    with pytest.raises(TypeError, match="column 'image': a scorer's row may hold"):
        through([], {"image": value})


def test_a_pickle_is_no_request() -> None:
    with pytest.raises(ValueError, match=r"decode|Expecting"):
        read_line(pickle.dumps(("response", {})))
