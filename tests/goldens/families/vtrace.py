"""V-trace. The arrays are time-major without a mask; the library's are `[B, T]`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlhf.trainer.advantages import vtrace
from tests.goldens.records import Answer, Record


def answer(record: Record) -> Mapping[str, Answer]:
    turned = {name: array.T for name, array in record.inputs.items()}
    traced = vtrace(
        turned["target_logp"],
        turned["behaviour_logp"],
        turned["rewards"],
        turned["values"],
        np.ones_like(turned["values"]),
        discounts=turned["discounts"],
        bootstrap=turned["bootstrap"],
        rho_bar=record.params["rho_bar"],
        c_bar=record.params["c_bar"],
        policy_rho_bar=record.params["pg_rho_bar"],
    )
    return {"vs": Answer(traced.returns.T), "pg_adv": Answer(traced.advantages.T)}
