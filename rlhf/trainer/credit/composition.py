"""Checks that the pieces of a recipe's algorithm fit together; each error gives the reason."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf.config import is_piece
from rlhf.trainer.config import (
    AdvantageConfig,
    CorrectionConfig,
    KLConfig,
    LossConfig,
    OverlongConfig,
    TrainerConfig,
)
from rlhf.trainer.credit.registry import ESTIMATORS, LOSSES, has_own_piece, is_corrected, needs_of

DISCOUNTING = ("gae", "vtrace", "reinforce_pp")
"""Estimators that assign rewards to individual actions."""


def check_composition(trainer: TrainerConfig) -> None:
    """Raise `ValueError` with the reason for pieces that do not fit together."""
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
            f"loss.policy policy_gradient is right only for the weights that sampled, but an update takes {steps} "
            "optimizer steps; use epochs 1 and minibatches 1, or ppo"
        )
    stale = "max_staleness above 0" if trainer.max_staleness else "replay" if trainer.replay.groups else ""
    if trainer.loss.policy == "policy_gradient" and stale and not is_corrected(trainer):
        raise ValueError(
            f"loss.policy policy_gradient with {stale} trains on another policy's samples; use ppo, "
            "vtrace, or proximal_logprobs recomputed with a correction"
        )
    if trainer.replay.groups > trainer.groups_per_update:
        raise ValueError(
            f"replay.groups is {trainer.replay.groups}, but an update leaves at most its groups_per_update of "
            f"{trainer.groups_per_update} for a second use"
        )
    if trainer.loss.dual_clip and trainer.loss.policy != "ppo":
        raise ValueError(f"loss.dual_clip bounds the ratio of ppo; loss.policy is {trainer.loss.policy}")
    _check_kl(trainer, estimator)
    _check_correction(trainer)
    _check_what_is_read(trainer)


def _check_names(trainer: TrainerConfig) -> None:
    for key, piece, known in (
        ("advantage.estimator", trainer.advantage.estimator, ESTIMATORS),
        ("loss.policy", trainer.loss.policy, LOSSES),
    ):
        if not is_piece(piece) and piece not in known:
            raise ValueError(f"{key} {piece!r} must be one of {', '.join(known)}, or your own module:function")


def _check_kl(trainer: TrainerConfig, estimator: str) -> None:
    kl = trainer.kl
    if kl.place == "loss" and kl.estimator == "k1" and not kl.exact_gradient:
        raise ValueError(
            "kl.estimator k1 in the loss (kl.place) teaches nothing: the expectation of its gradient is 0; use k2, k3, "
            "kl.exact_gradient: true, or kl.place: reward"
        )
    if kl.stop is not None and trainer.epochs * trainer.minibatches == 1:
        raise ValueError(
            "kl.stop skips the remaining optimizer steps of an update, but an update has only one; use more epochs "
            "or minibatches"
        )
    if kl.target is not None and kl.coefficient == 0:
        raise ValueError("kl.target steers kl.coefficient, which is 0 and stays 0; give it a start above 0")
    if kl.exact_gradient and kl.place == "reward":
        raise ValueError(
            "kl.exact_gradient is for KL in the loss; no gradient runs through KL in the reward (kl.place); remove it"
        )
    if kl.coefficient and estimator == "distillation":
        raise ValueError("kl.coefficient holds to the reference, which with estimator distillation is the teacher")


def _check_correction(trainer: TrainerConfig) -> None:
    correction = trainer.correction
    unread = trainer.proximal_logprobs != "recomputed" or needs_of(trainer).weighted
    if unread and correction != CorrectionConfig():
        raise ValueError(
            "correction weighs tokens by the learner's log-probs from before the update, but nothing would read it; "
            "set proximal_logprobs: recomputed, with an estimator that does not weigh them itself"
        )
    if correction.low and correction.method != "mask":
        raise ValueError(f"correction.low is a bound of method mask; correction.method is {correction.method}")
    if correction.method == "mask" and correction.low > min(correction.high, 1.0):
        raise ValueError(
            f"correction keeps ratios from {correction.low:g} to {correction.high:g}, which would drop tokens that the "
            "learner and the engine agree on (ratio 1)"
        )


def _check_what_is_read(trainer: TrainerConfig) -> None:
    """Refuse settings that nothing would read: the recipe is mistaken."""
    for unread, words in (*_unread_of_the_loss(trainer), *_unread_of_the_advantage(trainer), *_unread_besides(trainer)):
        if unread:
            raise ValueError(words)


def _unread_of_the_loss(trainer: TrainerConfig) -> Iterator[tuple[bool, str]]:
    loss, usual = trainer.loss, LossConfig()
    yield (
        loss.constant_tokens is not None and loss.aggregation != "constant",
        f"loss.constant_tokens is read by aggregation constant; loss.aggregation is {loss.aggregation}",
    )
    sharp = (loss.temperature_positive, loss.temperature_negative)
    yield (
        sharp != (usual.temperature_positive, usual.temperature_negative) and loss.policy != "sapo",
        f"loss.temperature_positive and temperature_negative are read by sapo; loss.policy is {loss.policy}",
    )
    yield (
        bool(loss.arguments) and not is_piece(loss.policy),
        f"loss.arguments are those of a loss of your own; loss.policy is {loss.policy}",
    )


def _unread_of_the_advantage(trainer: TrainerConfig) -> Iterator[tuple[bool, str]]:
    given, usual, name = trainer.advantage, AdvantageConfig(), trainer.advantage.estimator
    is_one = f"advantage.estimator is {name}"
    yield given.per_turn and name != "gae", f"advantage.per_turn is read by gae; {is_one}"
    yield (
        given.lam_length_alpha is not None and (name != "gae" or given.per_turn),
        f"advantage.lam_length_alpha is read by gae, and not with per_turn; {is_one}",
    )
    yield (
        given.gamma != usual.gamma and name not in DISCOUNTING,
        f"advantage.gamma is read by {', '.join(DISCOUNTING)}; {is_one}",
    )
    yield given.lam != usual.lam and name != "gae", f"advantage.lam is read by gae; {is_one}"
    yield (
        bool(given.arguments) and not is_piece(name),
        f"advantage.arguments are those of an estimator of your own; {is_one}",
    )


def _unread_besides(trainer: TrainerConfig) -> Iterator[tuple[bool, str]]:
    kl, overlong = trainer.kl, trainer.overlong
    yield (
        trainer.hold_reference and not has_own_piece(trainer),
        "hold_reference is for your own loss or estimator; the recipe sets neither",
    )
    yield (
        kl.exact_gradient and kl.coefficient == 0,
        "kl.exact_gradient is about the KL term, which kl.coefficient 0 turns off",
    )
    yield (
        kl.horizon != KLConfig().horizon and kl.target is None,
        "kl.horizon is read with kl.target, which is not set",
    )
    yield (
        trainer.filter.refill_groups is not None and not trainer.filter.equal_rewards,
        "filter.refill_groups is read with filter.equal_rewards, which is off",
    )
    yield (
        overlong.penalty_factor != OverlongConfig().penalty_factor and not overlong.buffer_tokens,
        "overlong.penalty_factor is read with overlong.buffer_tokens, which is 0 (off)",
    )
