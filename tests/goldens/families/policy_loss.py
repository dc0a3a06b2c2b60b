"""Policy losses and aggregations. A peer's name for a method is mapped to ours, its hyper-parameters to our options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rlhf.trainer.credit.kl import kl_in_loss
from rlhf.trainer.losses import Actions, LossMetrics
from rlhf.trainer.losses.off_policy import corrected
from rlhf.trainer.losses.policy import cispo, gspo, policy_gradient, ppo, sapo
from tests.goldens.families.aggregations import aggregated
from tests.goldens.records import Answer, Record
from tests.goldens.tensors import gradient, leaf, numbers, tensor
from tests.trainer.losses.made import flat, spread
from tests.trainer.losses.summed import summed

Params = Mapping[str, Any]
PerToken = tuple[Tensor, LossMetrics]


def answer(record: Record) -> Mapping[str, Answer]:
    if "x" in record.inputs:
        loss = aggregated(tensor(record.inputs["x"]), tensor(record.inputs["mask"]) > 0, record)
        return {"loss": Answer(numbers(loss))}
    method = METHODS.get(record.variant.split(".")[0])
    if method is None or "globalnorm" in record.variant.split("."):  # the latter does not record its clip bounds
        return {}
    return _answer(record, method)


def _answer(record: Record, method: Callable[[Actions, Params], PerToken]) -> Mapping[str, Answer]:
    logprobs, mask = leaf(record.inputs["logp"]), tensor(record.inputs["mask"]) > 0
    advantages = tensor(record.inputs["adv_tok" if "tok" in record.variant.split(".") else "adv_seq"])
    old = logprobs.detach() if record.variant.startswith("on_policy") else tensor(record.inputs["old_logp"])
    actions = flat(mask, logprobs, old, advantages)
    per_token, metrics = method(actions, record.params)
    if record.params.get("is_weights"):
        per_token = corrected(per_token, tensor(record.inputs["is_weights"])[mask])
    if "beta" in record.params:
        per_token = per_token + record.params["beta"] * _penalty(actions, mask, record)
    return _answers(record, actions, mask, per_token, metrics, logprobs)


def _answers(
    record: Record, actions: Actions, mask: Tensor, per_token: Tensor, metrics: LossMetrics, logprobs: Tensor
) -> Mapping[str, Answer]:
    rows = spread(per_token, mask)
    rtol = 1e-4 if float(actions.log_ratio.detach().abs().max()) > 10 else 1e-5
    if "elem" in record.outputs:
        return {"elem": Answer(numbers(rows), where=numbers(mask), rtol=rtol), "grad": Answer(gradient(rows, logprobs))}
    loss = aggregated(rows, mask, record)
    clipped = metrics.sums.get("policy/clip_fraction_low", 0.0) + metrics.sums.get("policy/clip_fraction_high", 0.0)
    divergence = summed(spread(-actions.log_ratio, mask), mask, "token_mean")
    return {
        "loss": Answer(numbers(loss), rtol=rtol),
        "grad": Answer(gradient(loss, logprobs), rtol=rtol),
        "clipfrac": Answer(float(clipped) / metrics.count),
        "clipfrac_lower": Answer(float(metrics.sums.get("policy/clip_fraction_dual", 0.0)) / metrics.count),
        "ppo_kl": Answer(numbers(divergence), rtol=rtol),
    }


def _penalty(actions: Actions, mask: Tensor, record: Record) -> Tensor:
    """KL to the reference at every token: NeMo with the gradient of KL itself, TRL with the estimator's own."""
    reference = tensor(record.inputs["ref_logp"])[mask]
    penalty = kl_in_loss(actions.logprobs - reference, "k3", exact_gradient=record.peer == "nemo")
    return penalty * torch.exp(actions.log_ratio) if record.params.get("use_bias_correction_kl") else penalty


def bounds(params: Params) -> dict[str, float]:
    low, high = (params.get(f"clip_{side}", params.get(f"eps_{side}")) for side in ("low", "high"))
    return {"clip_low": low, "clip_high": high}


def _on_policy(actions: Actions, params: Params) -> PerToken:
    """The ratio is 1 everywhere: any bounds do."""
    return ppo(actions, clip_low=0.2, clip_high=0.2)


def _ppo(actions: Actions, params: Params) -> PerToken:
    dual = params.get("dual_c")
    return ppo(actions, **bounds(params), dual_clip=None if isinstance(dual, str) else dual)


def _gspo(actions: Actions, params: Params) -> PerToken:
    return gspo(actions, **bounds(params))


def _cispo(actions: Actions, params: Params) -> PerToken:
    if "loss_type" in params:  # TRL: the bound is the largest ratio, and there is no lower one
        return cispo(actions, clip_low=1.0, clip_high=params["eps_high"] - 1)
    return cispo(actions, **bounds(params))


def _sapo(actions: Actions, params: Params) -> PerToken:
    return sapo(actions, temperature_positive=params["tau_pos"], temperature_negative=params["tau_neg"])


def _policy_gradient(actions: Actions, params: Params) -> PerToken:
    return policy_gradient(actions)


METHODS: dict[str, Callable[[Actions, Params], PerToken]] = {
    **dict.fromkeys(("ppo_sym", "ppo_higher", "ppo_higher_dual", "ppo_dual", "ppo_dual_elem", "ppo_kl"), _ppo),
    **dict.fromkeys(("grpo", "bnpo", "dr_grpo", "dapo", "grpo_kl", "grpo_kl_unbiased"), _ppo),
    "on_policy": _on_policy,
    **dict.fromkeys(("gspo", "gspo_elem", "luspo"), _gspo),
    **dict.fromkeys(("cispo", "cispo_elem"), _cispo),
    **dict.fromkeys(("sapo", "sapo_token"), _sapo),
    "gpg": _policy_gradient,
}
