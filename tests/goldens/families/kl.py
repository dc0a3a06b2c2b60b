"""KL estimators and controllers. `+` (verl) and `onpolicy` (NeMo) are our `exact_gradient`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from rlhf.trainer.credit.kl import KLController, kl_in_loss
from tests.goldens.records import Answer, Record
from tests.goldens.tensors import gradient, leaf, numbers, tensor


def answer(record: Record) -> Mapping[str, Answer]:
    if "kl_seq" in record.inputs:
        return {"coef": Answer(_coefficients(record))}
    name = record.params["estimator"].removesuffix("+").replace("low_var_kl", "k3")
    if name not in ("k1", "k2", "k3"):
        return {}
    exact = record.params["estimator"].endswith("+") or record.variant.endswith("_onpolicy")
    logprobs = leaf(record.inputs["logp"])
    kl = kl_in_loss(logprobs - tensor(record.inputs["ref_logp"]), name, exact_gradient=exact)
    if record.variant.endswith("_is"):
        kl = kl * tensor(record.inputs["is_ratio"])
    rtol = 1e-4 if np.abs(record.inputs["logp"] - record.inputs["ref_logp"]).max() > 10 else 1e-5
    return {
        "kl": Answer(numbers(kl), rtol=rtol),
        "grad": Answer(gradient(kl, logprobs), rtol=rtol),
        "grad_w": Answer(gradient(torch.mul(kl, tensor(record.inputs["w"])), logprobs), rtol=rtol),
    }


def _coefficients(record: Record) -> list[float]:
    """The coefficient after each update."""
    params = record.params
    controller, seen = KLController(params["init"], params["target"], params["horizon"]), []
    for kl in record.inputs["kl_seq"]:
        controller = controller.after(float(kl), params["n_steps"])
        seen.append(controller.coefficient)
    return seen
