"""GAE where episodes are truncated: flat time cut into its episodes (RLlib), and rows with a bootstrap (AReaL)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlhf.trainer.credit.estimators import gae
from tests.goldens.records import Answer, Record
from tests.trainer.credit.made import made_of, spread


def answer(record: Record) -> Mapping[str, Answer]:
    advantages, returns = _flat(record) if "terminateds" in record.inputs else _rows(record)
    return {"adv": advantages, "returns": returns, "targets": returns}


def _rows(record: Record) -> list[Answer]:
    inputs, params = record.inputs, record.params
    bootstrap = inputs["values"][:, -1] * inputs["seq_no_eos_mask"]
    mask = inputs["loss_mask"]
    made = made_of(mask, rewards=inputs["rewards"], values=inputs["values"], bootstrap=bootstrap)
    return [Answer(spread(flat, mask), mask) for flat in gae(made, gamma=params["gamma"], lam=params["lam"])]


def _flat(record: Record) -> list[Answer]:
    """Each episode a row: a truncated one is followed by the value in the slot behind it, a terminated one by 0."""
    inputs, params = record.inputs, record.params
    rewards, values = inputs["rewards"], inputs["values"]
    ends = (inputs["terminateds"] + inputs["truncateds"]) > 0
    cuts = np.flatnonzero(ends[:-1]) + 1
    following = np.append(values[1:], 0.0) * (inputs["terminateds"] == 0)
    pieces = [
        gae(
            made_of(
                np.ones((1, chunk.size)),
                rewards=rewards[None, chunk],
                values=values[None, chunk],
                bootstrap=following[chunk[-1:]],
            ),
            gamma=params["gamma"],
            lam=params["lam"],
        )
        for chunk in np.split(np.arange(values.size), cuts)
    ]
    return [Answer(np.concatenate(columns)) for columns in zip(*pieces, strict=True)]
