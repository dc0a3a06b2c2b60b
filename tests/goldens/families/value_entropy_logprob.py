"""Value losses; log-probs and entropies of logits."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rlhf.models.head import chosen_logprobs
from rlhf.trainer.losses import value_loss
from tests.goldens.families.aggregations import aggregated
from tests.goldens.records import Answer, Record
from tests.goldens.tensors import gradient, leaf, numbers, tensor, with_gradient


def answer(record: Record) -> Mapping[str, Answer]:
    if "values" in record.inputs:
        return _value(record)
    logits = leaf(record.inputs["logits"])
    if record.variant.startswith("entropy_loss"):
        mean = aggregated(_entropy(logits, record), tensor(record.inputs["mask"]) > 0, record)
        return with_gradient(mean, logits)
    out = _of_logits(record, logits)
    return {"out": Answer(numbers(out)), "grad": Answer(gradient(out * tensor(record.inputs["w"]), logits))}


def _of_logits(record: Record, logits: Tensor) -> Tensor:
    if record.variant.startswith("entropy"):
        return _entropy(logits, record)
    labels = tensor(record.inputs["labels"])
    logprobs, _ = chosen_logprobs(logits.flatten(0, 1), labels.flatten(), record.params["temperature"])
    return logprobs.view(labels.shape)


def _entropy(logits: Tensor, record: Record) -> Tensor:
    rows = logits.flatten(0, -2)
    any_token = torch.zeros(len(rows), dtype=torch.int64)
    _, entropies = chosen_logprobs(rows, any_token, record.params["temperature"], entropy_gradient=True)
    return entropies.view(logits.shape[:-1])


def _value(record: Record) -> Mapping[str, Answer]:
    if record.params.get("loss") == "huber":
        return {}
    values = leaf(record.inputs["values"])
    names = ("cliprange", "clip_eps", "value_clip", "value_eps_clip")
    clip = next((record.params[name] for name in names if name in record.params), None)
    mask = tensor(record.inputs["mask"]) > 0
    losses = value_loss(values, tensor(record.inputs["old_values"]), tensor(record.inputs["returns"]), clip)
    return with_gradient(aggregated(losses, mask, record), values)
