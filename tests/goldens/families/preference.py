"""Losses on pairs of answers, on single answers, and of reward models."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rlhf.trainer.losses.preference import ScoredPairs, bradley_terry, divergence, dpo, implicit_reward, ipo, kto
from rlhf.trainer.pair_learner import kto_baseline
from rlhf.trainer.rank.metric_accumulator import MetricAccumulator
from rlhf.trainer.rank_answers import reduce_metrics
from tests.goldens.records import Answer, Record
from tests.goldens.tensors import gradient, leaf, numbers, tensor


def answer(record: Record) -> Mapping[str, Answer]:
    if "label" in record.inputs:
        return _kto(record) if record.params["loss_type"] == "kto" else {}
    chosen, rejected = leaf(record.inputs["chosen"]), leaf(record.inputs["rejected"])
    per_pair = _pairs(record, chosen, rejected) if "ref_chosen" in record.inputs else _scores(record, chosen, rejected)
    if per_pair is None:
        return {}
    answers = {
        "loss": Answer(numbers(per_pair.mean())),
        "per_pair": Answer(numbers(per_pair)),
        "grad_chosen": Answer(gradient(per_pair.mean(), chosen)),
        "grad_rejected": Answer(gradient(per_pair.mean(), rejected)),
    }
    return answers | (_rewards(record, chosen, rejected) if "ref_chosen" in record.inputs else {})


def _pairs(record: Record, chosen: Tensor, rejected: Tensor) -> Tensor | None:
    """The peers' names for a loss: a type (TRL), a flag (OpenRLHF), or the variant's name."""
    params, name = record.params, record.params.get("loss_type", record.variant.split(".")[0])
    if "f_divergence" in params:
        return None
    pairs = ScoredPairs(chosen, rejected, tensor(record.inputs["ref_chosen"]), tensor(record.inputs["ref_rejected"]))
    normalised = name in ("ipo_norm", "sigmoid_norm") or (name == "ipo" and record.peer == "trl")
    if normalised:
        pairs = pairs.per_token(tensor(record.inputs["chosen_len"]), tensor(record.inputs["rejected_len"]))
    if name in ("ipo", "ipo_norm"):
        return ipo(pairs, params["beta"])
    if name in ("sigmoid", "sigmoid_norm", "dpo", "dpo_ls"):
        return dpo(pairs, params["beta"], params.get("label_smoothing", 0.0))
    return None


def _rewards(record: Record, chosen: Tensor, rejected: Tensor) -> dict[str, Answer]:
    sides = {"chosen": chosen, "rejected": rejected}
    rewards = {
        side: implicit_reward(logprobs, tensor(record.inputs[f"ref_{side}"]), record.params["beta"])
        for side, logprobs in sides.items()
    }
    return {f"{side}_rewards": Answer(numbers(reward)) for side, reward in rewards.items()}


def _scores(record: Record, chosen: Tensor, rejected: Tensor) -> Tensor:
    margin = tensor(record.inputs["margin"]) if record.variant == "bt_margin" else 0.0
    return bradley_terry(chosen, rejected, margin, record.params.get("center_rewards_coefficient", 0.0))


def _kto(record: Record) -> Mapping[str, Answer]:
    params, logprobs, reference = record.params, leaf(record.inputs["logp"]), tensor(record.inputs["ref_logp"])
    desirable = tensor(record.inputs["label"]) > 0
    strayed = MetricAccumulator()
    strayed.see(divergence(tensor(record.inputs["kl_logp"]), tensor(record.inputs["kl_ref_logp"])))
    baseline = logprobs.new_tensor(kto_baseline(reduce_metrics([strayed.answer()])))
    weights = {name: params[name] for name in ("desirable_weight", "undesirable_weight")}
    losses = kto(logprobs, reference, desirable, baseline, params["beta"], **weights)
    rewards = implicit_reward(logprobs, reference, params["beta"])
    return {
        "loss": Answer(numbers(losses.mean())),
        "grad": Answer(gradient(losses.mean(), logprobs)),
        "losses": Answer(numbers(torch.cat([losses[desirable], losses[~desirable]]))),
        "chosen_rewards": Answer(numbers(rewards[desirable])),
        "rejected_rewards": Answer(numbers(rewards[~desirable])),
        "kl": Answer(numbers(baseline).reshape(record.outputs["kl"].shape)),
    }
