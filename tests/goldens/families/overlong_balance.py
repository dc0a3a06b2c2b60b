"""DAPO's price of length, and dealing sequences to ranks and rows.

A partition is not a formula: of the balance of ranks only the `quality` is compared, of packing the number of rows, and
ours may be better.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlhf.trainer.batching.packing import deal, pack_rows, row_tokens_of
from rlhf.trainer.config import OverlongConfig
from rlhf.trainer.credit.rewards import overlong_penalty
from tests.goldens.records import Answer, Record


def answer(record: Record) -> Mapping[str, Answer]:
    if "buffer" in record.params:
        return _overlong(record)
    if "capacity" in record.params:
        return _packing(record)
    return _balance(record) if "k" in record.params else {}


def _overlong(record: Record) -> Mapping[str, Answer]:
    lengths, params = record.inputs["lengths"], record.params
    overlong = OverlongConfig(buffer_tokens=params["buffer"], penalty_factor=params["factor"])
    penalty = overlong_penalty(lengths, overlong, params["max_len"])
    return {"rewards": Answer(record.inputs["rewards"] + penalty), "n": Answer(int(np.count_nonzero(penalty)))}


def _packing(record: Record) -> Mapping[str, Answer]:
    capacity, lengths = record.params["capacity"], record.inputs["lengths"].tolist()
    rows = pack_rows(lengths, capacity)
    largest = Answer(row_tokens_of(rows[0], lengths))
    return {"nbins": Answer(len(rows), at_most=True), "max_sum": largest, "capacity": Answer(capacity)}


def _balance(record: Record) -> Mapping[str, Answer]:
    lengths, ranks = record.inputs["lengths"].tolist(), record.params["k"]
    longest_first = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    shares = deal([(index,) for index in longest_first], lengths, ranks)
    sums = [sum(row_tokens_of(row, lengths) for row in share) for share in shares]
    return {"quality": Answer(max(sums) * ranks / sum(lengths), at_most=True), "sums": Answer(sorted(sums))}
