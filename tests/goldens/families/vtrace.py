"""V-trace. The arrays are time-major without a mask; the library's are `[B, T]`."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rlhf.trainer.credit.estimators import vtrace
from tests.goldens.records import Answer, Record
from tests.trainer.credit.made import made_of


def answer(record: Record) -> Mapping[str, Answer]:
    turned = {name: array.T for name, array in record.inputs.items()}
    made = made_of(
        np.ones_like(turned["values"]),
        proximal_logprobs=turned["target_logp"],
        behaviour_logprobs=turned["behaviour_logp"],
        **{name: turned[name] for name in ("rewards", "values", "bootstrap")},
    )
    rho, c, policy_rho = (record.params[name] for name in ("rho_bar", "c_bar", "pg_rho_bar"))
    rho, policy_rho = (math.inf if bar is None else bar for bar in (rho, policy_rho))
    answers = vtrace(made, gamma=turned["discounts"].ravel(), rho_bar=rho, c_bar=c, policy_rho_bar=policy_rho)
    advantages, targets = (flat.reshape(turned["values"].shape).T for flat in answers)
    return {"vs": Answer(targets), "pg_adv": Answer(advantages)}
