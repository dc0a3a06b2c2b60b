"""GAE on token rewards and values, and whitening with its statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.trainer.arrays import Doubles
from rlhf.trainer.credit.estimators import gae, moments, whiten
from tests.goldens.records import Answer, Record
from tests.trainer.credit.made import at_last_action, made_of, spread

WHITENED_ATOL = 5e-6


def answer(record: Record) -> Mapping[str, Answer]:
    if record.peer == "ref":
        return {}
    return _whitening(record) if "x" in record.inputs else _estimates(record)


def _estimates(record: Record) -> Mapping[str, Answer]:
    inputs, mask = record.inputs, record.inputs["mask"]
    outcome_only = record.peer == "nemo"
    rewards = at_last_action(inputs["score"], mask) if outcome_only else inputs["rewards"]
    raw, returns = _gae(rewards, inputs["values"], mask, record.params)
    advantages = Answer(spread(raw, mask), mask)
    if _whitens(record.params):
        advantages = Answer(spread(whiten(raw), mask), mask, atol=WHITENED_ATOL)
    return {
        "adv": advantages,
        "adv_raw": Answer(spread(raw, mask), mask, atol=WHITENED_ATOL),
        "returns": Answer(spread(returns, mask), mask),
    }


def _gae(
    rewards: NDArray[Any], values: NDArray[Any], mask: NDArray[Any], params: Mapping[str, Any]
) -> tuple[Doubles, Doubles]:
    """With `lambda_value` (VAPO) the critic has a lambda of its own and the policy's follows the length."""
    made = made_of(mask, rewards=rewards, values=values)
    if "lambda_value" not in params:
        return gae(made, gamma=params["gamma"], lam=params["lam"])
    return gae(made, gamma=params["gamma"], lam=params["lambda_value"], lam_length_alpha=params["alpha"])


def _whitens(params: Mapping[str, Any]) -> bool:
    return bool(params.get("normalize", params.get("whiten", "none") != "none"))


def _whitening(record: Record) -> Mapping[str, Answer]:
    values, mask = record.inputs["x"].astype(np.float64), record.inputs["mask"] > 0
    sample, population = (moments(values[mask], ddof=ddof) for ddof in (1, 0))
    row_means = [moments(row[live])[0] for row, live in zip(values, mask, strict=True)]
    return {
        "y": Answer(_whitened(record, values, mask), mask, atol=WHITENED_ATOL),
        "mean": Answer(sample[0]),
        "var": Answer(sample[1]),
        "var_biased": Answer(population[1]),
        "mean_all": Answer(sample[0]),
        "mean_rows": Answer(row_means),
    }


def _whitened(record: Record, values: NDArray[Any], mask: NDArray[Any]) -> NDArray[np.float64]:
    params = record.params
    ddof = int(params.get("ddof", params.get("unbiased", 1)))
    if "row" in record.variant:
        return np.stack([spread(whiten(row[live], ddof=ddof), live) for row, live in zip(values, mask, strict=True)])
    return spread(whiten(values[mask], ddof=ddof, shift_mean=params.get("shift_mean", True)), mask)
