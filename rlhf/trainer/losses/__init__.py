"""The losses: tensors in, losses and metrics out. Pure, importable as a library, no engine and no rank in sight.

One module an idea: `policy` (the losses of the field, token by token), `aggregation` (from tokens to a number), `kl`,
`value`, `entropy`, `off_policy` (weights and rejection), `preference`; `microbatch` is what a rank calls.
"""

from rlhf.trainer.losses.actions import Actions
from rlhf.trainer.losses.aggregation import Aggregation, aggregate, denominator, token_weights
from rlhf.trainer.losses.kl import k3
from rlhf.trainer.losses.metrics import Metrics
from rlhf.trainer.losses.microbatch import (
    engine_difference,
    off_policy_metrics,
    policy_loss,
    sft_loss,
    truncated_importance,
)

__all__ = [
    "Actions", "Aggregation", "Metrics", "aggregate", "denominator", "engine_difference", "k3", "off_policy_metrics",
    "policy_loss", "sft_loss", "token_weights", "truncated_importance",
]  # fmt: skip
