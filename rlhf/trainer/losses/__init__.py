"""The losses: tensors in, losses and metrics out. Pure functions, usable as a library, independent of engines and
ranks.

One module per topic: `actions` (their input), `policy` (token-level policy losses, and the critic's), `off_policy`
(importance weights and rejection), `preference`; `microbatch` is what a rank calls.
"""

from rlhf.trainer.losses.actions import Actions, LossMetrics
from rlhf.trainer.losses.microbatch import (
    Objective,
    aggregate,
    engine_difference,
    off_policy_metrics,
    policy_loss,
    policy_loss_of,
    sft_loss,
)
from rlhf.trainer.losses.policy import value_loss

__all__ = [
    "Actions", "LossMetrics", "Objective", "aggregate", "engine_difference", "off_policy_metrics", "policy_loss",
    "policy_loss_of", "sft_loss", "value_loss",
]  # fmt: skip
