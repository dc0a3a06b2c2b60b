"""The losses: tensors in, losses and metrics out. Pure functions, usable as a library, independent of engines and
ranks.

One module per topic: `policy` (token-level policy losses), `kl`, `value`, `entropy`, `off_policy` (importance weights
and rejection), `preference`; `rows` unpacks tokens into rows for them, and `microbatch` is what a rank calls.
"""

from rlhf.trainer.losses.actions import Actions
from rlhf.trainer.losses.kl import k3
from rlhf.trainer.losses.metrics import Metrics
from rlhf.trainer.losses.microbatch import (
    Objective,
    Tokens,
    aggregate,
    engine_difference,
    off_policy_metrics,
    policy_loss,
    policy_loss_of,
    sft_loss,
)
from rlhf.trainer.losses.rows import ActionSequences
from rlhf.trainer.losses.value import value_loss

__all__ = [
    "Actions", "Metrics", "Objective", "ActionSequences", "Tokens", "aggregate", "engine_difference", "k3",
    "off_policy_metrics",
    "policy_loss", "policy_loss_of", "sft_loss", "value_loss",
]  # fmt: skip
