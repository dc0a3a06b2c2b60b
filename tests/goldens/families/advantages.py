"""Outcome advantages: what each name of a peer's estimator is called here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.trainer.advantages import (
    best_of_group,
    group_relative,
    kl_penalised,
    leave_one_out,
    length_weighted,
    outcome_rewards,
    over_tokens,
    per_group,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    rewards_to_go,
)
from tests.goldens.records import Answer, Record

WHITENED_ATOL = 5e-6
Floats = NDArray[np.float64]
Estimator = Callable[[Record], Floats]


def answer(record: Record) -> Mapping[str, Answer]:
    """Advantages by the first pattern that knows the variant, and the returns of the token rewards."""
    mask = record.inputs["mask"]
    returns = Answer(_returns(record), mask)
    for peer, variant, estimate, atol in ESTIMATORS:
        if fnmatchcase(record.peer, peer) and fnmatchcase(record.variant, variant):
            return {"adv": _shaped_like(record, estimate(record), atol), "returns": returns}
    return {"returns": returns}


def _shaped_like(record: Record, advantages: Floats, atol: float) -> Answer:
    """Sequence advantages `[B]` are spread over the tokens where the peer's are per token."""
    if record.outputs["adv"].ndim == 1:
        return Answer(advantages, atol=atol)
    mask = record.inputs["mask"]
    return Answer(over_tokens(advantages, mask) if advantages.ndim == 1 else advantages, mask, atol=atol)


def _returns(record: Record) -> Floats:
    """Rewards to go; OpenRLHF's named estimators shape the score first, so that their returns are the advantages."""
    rewards, mask, params = record.inputs["rewards"], record.inputs["mask"], record.params
    if "kl_coef" in params and "estimator" not in params:
        rewards = kl_penalised(rewards, record.inputs["kl"], mask, coefficient=params["kl_coef"])
    if "estimator" in params:
        shaped = SHAPED_SCORES[params["estimator"]](record)
        rewards = outcome_rewards(shaped, mask)
    return rewards_to_go(rewards, mask, gamma=params.get("gamma", 1.0))


def _group_relative(record: Record, *, by_std: bool) -> Floats:
    epsilon = _epsilon(record.params)
    estimate = partial(group_relative, normalize_by_std=by_std, epsilon=epsilon)
    return per_group(estimate, record.inputs["index"], record.inputs["scores"])


def _epsilon(params: Mapping[str, Any]) -> float:
    return float(params.get("std_eps") or params.get("eps") or 1e-6)


def _leave_one_out(record: Record) -> Floats:
    return per_group(leave_one_out, record.inputs["index"], record.inputs["scores"])


def _length_weighted(record: Record) -> Floats:
    inputs = record.inputs
    return per_group(length_weighted, inputs["index"], inputs["scores"], inputs["mask"].sum(-1))


def _best_of_group(record: Record) -> Floats:
    params = record.params
    estimate = partial(best_of_group, normalize_by_std=params["norm"], epsilon=_epsilon(params))
    return per_group(estimate, record.inputs["index"], record.inputs["scores"])


def _reinforce_plus_plus(record: Record, *, ddof: int) -> Floats:
    inputs = record.inputs
    return reinforce_plus_plus(inputs["rewards"], inputs["mask"], gamma=record.params.get("gamma", 1.0), ddof=ddof)


def _reinforce_plus_plus_baseline(record: Record, *, ddof: int) -> Floats:
    inputs = record.inputs
    return reinforce_plus_plus_baseline(inputs["scores"], inputs["index"], inputs["mask"], ddof=ddof)


def _remax(record: Record) -> Floats:
    return remax(record.inputs["rewards"], record.inputs["baseline"], record.inputs["mask"])


GRPO = partial(_group_relative, by_std=True)
DR_GRPO = partial(_group_relative, by_std=False)

SHAPED_SCORES: Mapping[str, Estimator] = {
    "rloo": _leave_one_out,
    "reinforce_baseline": DR_GRPO,
    "dr_grpo": DR_GRPO,
    "group_norm": GRPO,
    "reinforce": lambda record: record.inputs["scores"],
}
"""What OpenRLHF makes of a score before it becomes a token reward."""

ESTIMATORS: tuple[tuple[str, str, Estimator, float], ...] = (
    ("*", "grpo_std*", GRPO, 1e-6),
    ("*", "grpo_nostd*", DR_GRPO, 1e-6),
    ("trl", "grpo_group", GRPO, 1e-6),
    ("trl", "grpo_none", DR_GRPO, 1e-6),
    ("nemo", "grpo_loo0_norm1", GRPO, 1e-6),
    ("nemo", "grpo_loo0_norm0", DR_GRPO, 1e-6),
    ("nemo", "grpo_loo1_norm0", _leave_one_out, 1e-6),
    ("openrlhf", "group_norm", GRPO, 1e-6),
    ("openrlhf", "dr_grpo", DR_GRPO, 1e-6),
    ("trl", "rloo_norm0", _leave_one_out, 1e-6),
    ("[!t]*", "rloo*", _leave_one_out, 1e-6),
    ("*", "opo", _length_weighted, 1e-6),
    ("*", "passk*", _best_of_group, 1e-6),
    ("*", "remax", _remax, 1e-6),
    ("verl", "reinforce_pp_baseline", partial(_reinforce_plus_plus_baseline, ddof=1), WHITENED_ATOL),
    ("openrlhf", "reinforce_baseline", partial(_reinforce_plus_plus_baseline, ddof=0), WHITENED_ATOL),
    ("nemo", "reinforce_pp_base1", partial(_reinforce_plus_plus_baseline, ddof=0), WHITENED_ATOL),
    ("nemo", "reinforce_pp_base0", partial(_reinforce_plus_plus, ddof=0), WHITENED_ATOL),
    ("nemo", "raw_norm", partial(_reinforce_plus_plus, ddof=0), WHITENED_ATOL),
    ("openrlhf", "reinforce", partial(_reinforce_plus_plus, ddof=0), WHITENED_ATOL),
    ("*", "reinforce_pp_g*", partial(_reinforce_plus_plus, ddof=1), WHITENED_ATOL),
)
