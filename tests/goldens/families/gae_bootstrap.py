"""GAE where episodes are truncated: flat time cut into its episodes (RLlib), and rows with a bootstrap (AReaL)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlhf.trainer.advantages import Estimates, gae
from tests.goldens.records import Answer, Record


def answer(record: Record) -> Mapping[str, Answer]:
    flat = "terminateds" in record.inputs
    estimates = _flat(record) if flat else _rows(record)
    where = None if flat else record.inputs["loss_mask"]
    returns = Answer(estimates.returns, where)
    return {"adv": Answer(estimates.advantages, where), "returns": returns, "targets": returns}


def _rows(record: Record) -> Estimates:
    inputs, params = record.inputs, record.params
    bootstrap = inputs["values"][:, -1] * inputs["seq_no_eos_mask"]
    return gae(
        inputs["rewards"],
        inputs["values"],
        inputs["loss_mask"],
        gamma=params["gamma"],
        lam=params["lam"],
        bootstrap=bootstrap,
    )


def _flat(record: Record) -> Estimates:
    """Each episode a row: a truncated one is followed by the value in the slot behind it, a terminated one by 0."""
    inputs, params = record.inputs, record.params
    rewards, values = inputs["rewards"], inputs["values"]
    ends = (inputs["terminateds"] + inputs["truncateds"]) > 0
    cuts = np.flatnonzero(ends[:-1]) + 1
    following = np.append(values[1:], 0.0) * (inputs["terminateds"] == 0)
    pieces = [
        gae(
            rewards[None, chunk],
            values[None, chunk],
            np.ones((1, chunk.size)),
            gamma=params["gamma"],
            lam=params["lam"],
            bootstrap=following[chunk[-1:]],
        )
        for chunk in np.split(np.arange(values.size), cuts)
    ]
    advantages = np.concatenate([piece.advantages[0] for piece in pieces])
    return Estimates(advantages, np.concatenate([piece.returns[0] for piece in pieces]))
