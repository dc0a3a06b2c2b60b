"""Off-policy corrections: a peer's correction is a ratio at some level, truncated or kept within bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf.trainer.losses import Actions
from rlhf.trainer.losses.off_policy import RatioLevel, corrected, masked_ratios, ratio, truncated, within_bounds
from rlhf.trainer.losses.policy import cispo, gspo, policy_gradient, ppo
from rlhf.trainer.rank_answers import effective_sample_size
from tests.goldens.families.aggregations import COUNTS_EVERY_ROW, aggregated
from tests.goldens.families.policy_loss import bounds
from tests.goldens.records import Answer, Record
from tests.goldens.tensors import gradient, leaf, numbers, tensor
from tests.trainer.losses.made import flat, sequences_of, spread
from tests.trainer.losses.summed import summed

Params = Mapping[str, Any]


def answer(record: Record) -> Mapping[str, Answer]:
    rule = next((rule for prefix, rule in RULES.items() if record.variant.startswith(prefix)), None)
    return {} if rule is None else rule(record)


def _ratio(record: Record, level: RatioLevel) -> Tensor:
    """Of rows `[B, T]`, 0 outside the mask."""
    mask = _mask(record)
    old, behaviour = (tensor(record.inputs[name])[mask] for name in ("old_logp", "rollout_logp"))
    return spread(ratio(old, behaviour, sequences_of(mask), level), mask)


def _mask(record: Record) -> Tensor:
    return tensor(record.inputs["mask"]) > 0


def _interval(params: Params) -> dict[str, float]:
    """The bounds of a correction by any of the peers' names; absent ones do not bind."""
    if "threshold" in params:
        low, _, high = params["threshold"].rpartition("_")
        return {"low": float(low or 0), "high": float(high)}
    low = next((params[name] for name in ("low", "lower", "clip_min", "min") if params.get(name) is not None), 0.0)
    names = ("high", "upper", "clip_max", "max", "cap")
    return {"low": low, "high": next((params[name] for name in names if params.get(name) is not None), math.inf)}


def _weights(record: Record, weights: Tensor) -> Mapping[str, Answer]:
    """Weights where the peer has one a token, or one a row; compared on the tokens of the mask."""
    mask = record.inputs["mask"]
    if record.outputs["weights"].shape != mask.shape:
        weights, where = weights.amax(-1, keepdim=True), mask.any(-1, keepdims=True)
    else:
        where = mask
    chosen = numbers(weights).astype(np.float64)[np.broadcast_to(where, weights.shape) > 0]
    ess = effective_sample_size(chosen.mean(), (chosen**2).mean())
    return {"weights": Answer(numbers(weights), where=where, rtol=_rtol(record)), "ess": Answer(ess)}


def _level(record: Record) -> RatioLevel:
    return "sequence" if "sequence" in record.variant else "token"


def _truncated(record: Record) -> Mapping[str, Answer]:
    if record.params.get("batch_normalize"):
        return {}
    return _weights(record, truncated(_ratio(record, _level(record)), **_interval(record.params)))


def _masked(record: Record) -> Mapping[str, Answer]:
    if record.params.get("batch_normalize"):
        return {}
    return _weights(record, masked_ratios(_ratio(record, _level(record)), **_interval(record.params)))


def _rejection(record: Record) -> Mapping[str, Answer]:
    """verl's k1 statistics are log-ratios turned round: kept where behaviour over proximal is within the bounds."""
    mode = record.params["mode"]
    levels: dict[str, RatioLevel] = {"token_k1": "token", "seq_sum_k1": "sequence", "seq_mean_k1": "geometric"}
    if mode not in levels:
        return {}
    low, high = _interval(record.params).values()  # a single bound is one on either side
    keep = within_bounds(_ratio(record, levels[mode]), low=1 / high, high=1 / low if low else high)
    mask = record.inputs["mask"] > 0
    left = numbers(keep) & mask
    return {"mask": Answer(left), "masked_frac": Answer(1 - left.sum() / mask.sum())}


def _keep(record: Record) -> Mapping[str, Answer]:
    """SkyRL's masks: of tokens, or of rows by the product or the geometric mean."""
    levels: dict[str, RatioLevel] = {
        "seqmask_geometric": "geometric",
        "seqmask_product": "sequence",
        "token_mask": "token",
    }
    keep, mask = (
        within_bounds(_ratio(record, levels[record.variant]), **_interval(record.params)),
        record.inputs["mask"] > 0,
    )
    if record.outputs["keep"].shape != mask.shape:
        rows = (numbers(keep) & mask).any(-1, keepdims=True)
        return {"keep": Answer(rows, where=mask.any(-1, keepdims=True))}
    return {"keep": Answer(numbers(keep), where=mask)}


def _decoupled(record: Record) -> Mapping[str, Answer]:
    """AReaL: the loss, the surviving mask and the weights."""
    params, level = record.params, record.params["level"]
    levels = {"mean": "geometric", "sum": "sequence"}
    if params["metric"] not in ("ratio", "kl_k1") or (level == "sequence" and params["agg"] not in levels):
        return {}
    interval = _interval(params)
    if params["metric"] == "kl_k1":
        lower = params["lower"]
        interval = {"low": 0.0 if lower is None else math.exp(lower), "high": math.exp(interval["high"])}
    judged = _ratio(record, "token" if level == "token" else levels[params["agg"]])
    ratios = _ratio(record, "token" if level == "token" else "geometric")
    clamps = params["action"] == "clamp"
    weights = truncated(ratios, **interval) if clamps else ratios * within_bounds(judged, **interval)
    mask = record.inputs["mask"] > 0
    survivors = mask if clamps else mask & numbers(within_bounds(judged, **interval))
    return {
        **_loss(record, weights),
        "mask": Answer(survivors),
        "weights": Answer(numbers(weights), where=survivors, rtol=_rtol(record)),
    }


def _corrected_ppo(record: Record) -> Mapping[str, Answer]:
    """PPO with weights: the words of the variant (or of the type) say which."""
    kind = record.params.get("type", record.params.get("mode", "tis"))
    interval = _interval(record.params)
    if kind == "seq-mask-tis":
        return _loss(record, _ratio(record, "token") * within_bounds(_ratio(record, "geometric"), **interval))
    level: RatioLevel = "sequence" if "sequence" in kind else "token"
    bounded = masked_ratios if kind == "icepop" or kind.endswith("_mask") else truncated
    if record.peer == "trl":
        interval = {"low": 0.5 if bounded is masked_ratios else 0.0, "high": 2.0}
    return _loss(record, bounded(_ratio(record, level), **interval))


def _loss(record: Record, weights: Tensor) -> Mapping[str, Answer]:
    logprobs, mask = leaf(record.inputs["logp"]), _mask(record)
    advantages = tensor(record.inputs["adv"])
    if record.peer == "trl":
        advantages = tensor(record.inputs["adv_seq"])[:, None].expand(mask.shape)
    actions = flat(mask, logprobs, tensor(record.inputs["old_logp"]), advantages)
    dual = record.params.get("dual_c")
    per_token, _ = ppo(actions, **bounds(record.params), dual_clip=dual)
    return _answers(record, corrected(per_token, weights[mask]), logprobs)


def _answers(record: Record, per_token: Tensor, logprobs: Tensor) -> dict[str, Answer]:
    mask = _mask(record)
    rtol, loss = _rtol(record), aggregated(spread(per_token, mask), mask, record)
    return {"loss": Answer(numbers(loss), rtol=rtol), "grad": Answer(gradient(loss, logprobs), rtol=rtol)}


def _to_behaviour(record: Record) -> tuple[Actions, Tensor]:
    """Losses whose ratio is to the behaviour policy directly."""
    logprobs = leaf(record.inputs["logp"])
    old, advantages = (tensor(record.inputs[name]) for name in ("rollout_logp", "adv"))
    return flat(_mask(record), logprobs, old, advantages), logprobs


def _cispo(record: Record) -> Mapping[str, Answer]:
    actions, logprobs = _to_behaviour(record)
    return _answers(record, cispo(actions, **bounds(record.params))[0], logprobs)


def _gspo(record: Record) -> Mapping[str, Answer]:
    """OpenRLHF takes the ratio to the behaviour policy, NeMo to the proximal one and weights the sequence."""
    actions, logprobs = _to_behaviour(record)
    mask, weights = _mask(record), torch.ones_like(actions.advantages)
    if record.variant == "gspo_seqis":
        actions = replace(actions, proximal_logprobs=tensor(record.inputs["old_logp"])[mask])
        weights = _ratio(record, "sequence")[mask]
    per_token = corrected(gspo(actions, **bounds(record.params))[0], weights)
    whole = float(len(mask)) if record.peer in COUNTS_EVERY_ROW else None
    loss, rtol = summed(spread(per_token, mask), mask, "sequence_mean", whole), _rtol(record)
    return {"loss": Answer(numbers(loss), rtol=rtol), "grad": Answer(gradient(loss, logprobs), rtol=rtol)}


def _reinforce(record: Record) -> Mapping[str, Answer]:
    actions, logprobs = _to_behaviour(record)
    ratios = ratio(actions.logprobs, actions.proximal_logprobs, actions.sequences, "token")
    if record.variant == "rollout_is":
        low, high = bounds(record.params).values()
        weights = masked_ratios(ratios, low=1 - low, high=1 + high)
    else:
        weights = truncated(ratios, **_interval(record.params))
    answers = _answers(record, corrected(policy_gradient(actions)[0], weights), logprobs)
    return answers | {"weights": Answer(numbers(spread(weights, _mask(record))), where=record.inputs["mask"])}


def _rtol(record: Record) -> float:
    names = ("logp", "old_logp", "rollout_logp")
    logprobs = [torch.where(tensor(record.inputs["mask"]) > 0, tensor(record.inputs[name]), 0.0) for name in names]
    return 1e-4 if max(float((logprobs[0] - other).abs().max()) for other in logprobs) > 5 else 1e-5


RULES: dict[str, Callable[[Record], Mapping[str, Answer]]] = {
    "tis_": _truncated,
    "vanilla_tis": _truncated,
    "token_truncate": _truncated,
    "sequence_truncate": _truncated,
    "icepop": _masked,
    "token_mask": lambda record: _keep(record) if "keep" in record.outputs else _masked(record),
    "sequence_mask": _masked,
    "rs_": _rejection,
    "seqmask_": _keep,
    "decoupled_": _decoupled,
    "ppo_": _corrected_ppo,
    "grpo_": _corrected_ppo,
    "cispo_rollout": _cispo,
    "gspo_": _gspo,
    "rollout_is": _reinforce,
    "reinforce_tis": _reinforce,
}
"""The first prefix of a variant's name decides."""
