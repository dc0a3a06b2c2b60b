"""A peer's way to make one number of many, in the words of `rlhf.trainer.aggregation`."""

from __future__ import annotations

from torch import Tensor

from rlhf.trainer.aggregation import Aggregation
from tests.goldens.records import Record
from tests.trainer.losses.summed import summed

OURS: dict[str, Aggregation] = {
    "token-mean": "token_mean",
    "token-sum": "token_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum-norm": "constant",
    "sequence-mean": "sequence_mean",
    "grpo": "sequence_mean",
    "sapo": "sequence_mean",
    "luspo": "sequence_sum",
    "dr_grpo": "constant",
}
COUNTS_EVERY_ROW = {"skyrl", "trl", "nemo"}
"""Peers whose denominator is the size of the batch, rows without a token included."""


def aggregated(per_token: Tensor, mask: Tensor, record: Record) -> Tensor:
    """The loss as the record's peer adds it up; a denominator that is not ours is passed as the one of the step."""
    name = _name(record)
    aggregation = OURS.get(name, "token_mean")
    constant = _constant(record, mask)
    rows = float(len(mask)) * (constant if aggregation == "constant" else 1.0)
    whole = rows if record.peer in COUNTS_EVERY_ROW and aggregation != "token_mean" else None
    if name == "token-sum":
        whole = 1.0
    if "batch_num_tokens" in record.params:
        whole = record.params["batch_num_tokens"] / record.params["dp_size"]
    return summed(per_token, mask, aggregation, whole, constant)


def _name(record: Record) -> str:
    params = record.params
    if "loss_scale_factor" in params:
        return "seq-mean-token-sum-norm"
    if "token_level_loss" in params:
        return "token-mean" if params["token_level_loss"] else "seq-mean-token-mean"
    named = str(params.get("agg") or params.get("mode") or params.get("loss_type", "token-mean"))
    return named.split(" ")[0] if "loss_type" in params else named.split(" ")[0].replace("_", "-")


def _constant(record: Record, mask: Tensor) -> float:
    for name in ("loss_scale_factor", "max_seq_len", "max_completion_length"):
        if name in record.params:
            return float(record.params[name])
    return float(mask.shape[1])
