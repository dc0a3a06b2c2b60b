"""What does not go together in a recipe's algorithm, with the reason."""

from __future__ import annotations

from rlhf.pieces import is_piece
from rlhf.trainer.algorithm import ESTIMATORS, LOSSES, is_corrected, needs_of
from rlhf.trainer.config import CorrectionConfig, TrainerConfig


def check_composition(trainer: TrainerConfig) -> None:
    """Raise `ValueError` with the reason for pieces that do not go together."""
    _check_names(trainer)
    needs, estimator = needs_of(trainer), trainer.advantage.estimator
    steps = trainer.epochs * trainer.minibatches
    if needs.values and trainer.critic is None:
        raise ValueError(f"advantage.estimator {estimator} reads a critic's values; give trainer.critic, {{}} will do")
    if trainer.critic and not needs.values:
        raise ValueError(f"trainer.critic is given, but advantage.estimator {estimator} does not read its values")
    if needs.siblings and trainer.group_size < 2:
        raise ValueError(f"group_size is 1, but advantage.estimator {estimator} compares the samples of a group")
    if trainer.filter.equal_rewards and not needs.siblings and not is_piece(estimator):
        raise ValueError(
            f"filter.equal_rewards drops groups that teach nothing, but with advantage.estimator {estimator} they teach"
        )
    if needs.weighted and trainer.loss.policy != "policy_gradient":
        raise ValueError(
            f"advantage.estimator {estimator} has the importance weight in the advantage; "
            f"loss.policy {trainer.loss.policy} would weigh it again: use policy_gradient"
        )
    if trainer.loss.policy == "policy_gradient" and steps > 1:
        raise ValueError(
            f"loss.policy policy_gradient is right for the weights that sampled, and {steps} optimizer steps an update "
            "leave them; use epochs 1 and minibatches 1, or ppo"
        )
    if trainer.loss.policy == "policy_gradient" and trainer.max_staleness and not is_corrected(trainer):
        raise ValueError(
            "loss.policy policy_gradient with max_staleness above 0 trains on another policy's samples; use ppo, "
            "vtrace, or old_logprobs recomputed with a correction"
        )
    if trainer.loss.dual_clip and trainer.loss.policy != "ppo":
        raise ValueError(f"loss.dual_clip bounds the ratio of ppo; loss.policy is {trainer.loss.policy}")
    _check_kl(trainer, estimator)
    _check_correction(trainer)
    _check_what_is_read(trainer)


def _check_names(trainer: TrainerConfig) -> None:
    for key, piece, known in (
        ("advantage.estimator", trainer.advantage.estimator, tuple(ESTIMATORS)),
        ("loss.policy", trainer.loss.policy, LOSSES),
    ):
        if not is_piece(piece) and piece not in known:
            raise ValueError(f"{key} {piece!r} is none of {', '.join(known)}, nor a module:function of yours")


def _check_kl(trainer: TrainerConfig, estimator: str) -> None:
    kl = trainer.kl
    if kl.target is not None and kl.coefficient == 0:
        raise ValueError("kl.target steers kl.coefficient, which is 0 and stays 0; give it a start above 0")
    if kl.exact_gradient and kl.place == "reward":
        raise ValueError("kl.exact_gradient is about the loss; in the reward (kl.place) no gradient runs through KL")
    if kl.coefficient and estimator == "distillation":
        raise ValueError("kl.coefficient holds to the reference, which with estimator distillation is the teacher")


def _check_correction(trainer: TrainerConfig) -> None:
    correction = trainer.correction
    unread = trainer.old_logprobs != "recomputed" or needs_of(trainer).weighted
    if unread and correction != CorrectionConfig():
        raise ValueError(
            "correction weighs tokens by the learner's log-probs from before the update, and nothing would read it; "
            "set old_logprobs: recomputed, with an estimator that does not weigh them itself"
        )
    if correction.low and correction.method != "mask":
        raise ValueError(f"correction.low is a bound of method mask; correction.method is {correction.method}")
    if correction.method == "mask" and correction.low > min(correction.high, 1.0):
        raise ValueError(
            f"correction keeps ratios from {correction.low:g} to {correction.high:g}, which would drop tokens that the "
            "learner and the engine agree on (ratio 1)"
        )


def _check_what_is_read(trainer: TrainerConfig) -> None:
    """A setting that nothing would read is a mistake of the recipe."""
    loss, aggregation = trainer.loss, trainer.loss.aggregation
    if loss.constant_tokens is not None and aggregation != "constant":
        raise ValueError(f"loss.constant_tokens is read by aggregation constant; loss.aggregation is {aggregation}")
    if trainer.advantage.per_turn and trainer.advantage.estimator != "gae":
        raise ValueError(f"advantage.per_turn is read by gae; advantage.estimator is {trainer.advantage.estimator}")
