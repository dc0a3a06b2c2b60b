"""GAE where episodes are truncated: flat time cut into its episodes (RLlib), and rows with a bootstrap (AReaL)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlhf.trainer.credit.episodes import Estimates
from rlhf.trainer.credit.estimators import gae
from tests.goldens.records import Answer, Record
from tests.trainer.credit.made import episodes


def answer(record: Record) -> Mapping[str, Answer]:
    flat = "terminateds" in record.inputs
    estimates = _flat(record) if flat else _rows(record)
    where = None if flat else record.inputs["loss_mask"]
    returns = Answer(estimates.returns, where)
    return {"adv": Answer(estimates.advantages, where), "returns": returns, "targets": returns}


def _rows(record: Record) -> Estimates:
    inputs, params = record.inputs, record.params
    bootstrap = inputs["values"][:, -1] * inputs["seq_no_eos_mask"]
    made = episodes(inputs["loss_mask"], rewards=inputs["rewards"], values=inputs["values"], bootstrap=bootstrap)
    return gae(made, gamma=params["gamma"], lam=params["lam"])


def _flat(record: Record) -> Estimates:
    """Each episode a row: a truncated one is followed by the value in the slot behind it, a terminated one by 0."""
    inputs, params = record.inputs, record.params
    rewards, values = inputs["rewards"], inputs["values"]
    ends = (inputs["terminateds"] + inputs["truncateds"]) > 0
    cuts = np.flatnonzero(ends[:-1]) + 1
    following = np.append(values[1:], 0.0) * (inputs["terminateds"] == 0)
    pieces = [
        gae(
            episodes(
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
    advantages = np.concatenate([piece.advantages[0] for piece in pieces])
    return Estimates(advantages, np.concatenate([piece.returns[0] for piece in pieces]))
