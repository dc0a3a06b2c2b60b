"""Outcome advantages: what each name of a peer's estimator is called here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.trainer.batching.batch import Batch
from rlhf.trainer.credit import estimators
from tests.goldens.records import Answer, Record
from tests.trainer.credit.made import at_last_action, made_of, spread

WHITENED_ATOL = 5e-6
Floats = NDArray[np.float64]
Estimator = Callable[[Batch, Mapping[str, Any]], Floats]


def answer(record: Record) -> Mapping[str, Answer]:
    """Advantages by the first pattern that knows the variant, and the returns of the token rewards."""
    mask = record.inputs["mask"]
    returns = Answer(_returns(record), mask)
    for peer, variant, estimate, atol in ESTIMATORS:
        if fnmatchcase(record.peer, peer) and fnmatchcase(record.variant, variant):
            advantages = spread(estimate(_batch(record), record.params), mask)
            if record.outputs["adv"].ndim == 1:
                return {"adv": Answer(_of_episodes(advantages, mask), atol=atol), "returns": returns}
            return {"adv": Answer(advantages, mask, atol=atol), "returns": returns}
    return {"returns": returns}


def _batch(record: Record) -> Batch:
    names = {"scores": "scores", "rewards": "rewards", "index": "groups", "baseline": "baselines"}
    given = {ours: record.inputs[theirs] for theirs, ours in names.items() if theirs in record.inputs}
    return made_of(record.inputs["mask"], **given)


def _of_episodes(advantages: Floats, mask: NDArray[Any]) -> Floats:
    """Those of the first tokens, `[B]`."""
    return advantages[np.arange(len(mask)), (mask > 0).argmax(1)]


def _returns(record: Record) -> Floats:
    """Rewards to go; OpenRLHF's named estimators shape the score first, so that their returns are the advantages."""
    made, params, mask = _batch(record), record.params, record.inputs["mask"]
    rewards = made.rewards
    if "kl_coef" in params and "estimator" not in params:
        rewards = rewards - params["kl_coef"] * record.inputs["kl"].astype(np.float64)[mask > 0]
    if "estimator" in params:
        shape = SHAPED_SCORES[params["estimator"]]
        shaped = made.scores if shape is None else _of_episodes(spread(shape(made, params), mask), mask)
        rewards = at_last_action(shaped, mask)[mask > 0]
    return spread(estimators.rewards_to_go(rewards, made.lengths, gamma=params.get("gamma", 1.0)), mask)


def _group_relative(made: Batch, params: Mapping[str, Any], *, by_std: bool) -> Floats:
    return estimators.group_relative(made, normalize_by_std=by_std, epsilon=_epsilon(params))


def _epsilon(params: Mapping[str, Any]) -> float:
    return float(params.get("std_eps") or params.get("eps") or 1e-6)


def _leave_one_out(made: Batch, params: Mapping[str, Any]) -> Floats:
    return estimators.leave_one_out(made)


def _length_weighted(made: Batch, params: Mapping[str, Any]) -> Floats:
    return estimators.length_weighted(made)


def _best_of_group(made: Batch, params: Mapping[str, Any]) -> Floats:
    return estimators.best_of_group(made, normalize_by_std=params["norm"], epsilon=_epsilon(params))


def _reinforce_plus_plus(made: Batch, params: Mapping[str, Any], *, ddof: int) -> Floats:
    return estimators.reinforce_pp(made, gamma=params.get("gamma", 1.0), ddof=ddof)


def _reinforce_plus_plus_baseline(made: Batch, params: Mapping[str, Any], *, ddof: int) -> Floats:
    return estimators.reinforce_pp_baseline(made, ddof=ddof)


def _remax(made: Batch, params: Mapping[str, Any]) -> Floats:
    return estimators.remax(made)


GRPO = partial(_group_relative, by_std=True)
DR_GRPO = partial(_group_relative, by_std=False)

SHAPED_SCORES: Mapping[str, Estimator | None] = {
    "rloo": _leave_one_out,
    "reinforce_baseline": DR_GRPO,
    "dr_grpo": DR_GRPO,
    "group_norm": GRPO,
    "reinforce": None,
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
