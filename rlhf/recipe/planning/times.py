"""Rough times of one update, from operations and bytes: where the time goes, not what a clock will say."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf.recipe.planning.layout import EngineLayout, LearnerLayout, RunLayout
from rlhf.recipe.planning.machines import (
    LINK_UTILISATION,
    MEMORY_UTILISATION,
    NODE_LINK,
    UTILISATION,
    Card,
    Machine,
)
from rlhf.recipe.planning.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of one update with replies of full length. `communicate` is what DeepSpeed gathers and reduces, which is
    part of no other number; with `overlapping` training and generation run at once."""

    generate: float
    train: float
    communicate: float
    sync: float
    overlapping: bool

    @property
    def update(self) -> float:
        learning = self.train + self.communicate
        return self.sync + (max(self.generate, learning) if self.overlapping else self.generate + learning)


def times_of(shape: ModelShape, run: RunLayout, machine: Machine, cache: int) -> Times | None:
    """The times on GPUs, with room for `cache` tokens in each engine; None on a CPU."""
    card = machine.card
    if card is None or run.learner.device == "cpu":
        return None
    several = run.learner.ranks > machine.cards
    link = (NODE_LINK if several else card.link) * LINK_UTILISATION
    return Times(
        generate=_generate(shape, run, run.engine, card, cache) if run.engine else 0.0,
        train=_train(shape, run, card),
        communicate=_communicate(shape, run, run.learner, link),
        sync=shape.parameters * run.learner.width / link if run.engine else 0.0,
        overlapping=run.asynchronous,
    )


def tokens_of_update(run: RunLayout) -> int:
    """Tokens that the ranks compute: a prompt once for its replies."""
    return run.samples * run.reply + run.samples // run.replies * run.prompt


def _train(shape: ModelShape, run: RunLayout, card: Card) -> float:
    """Forward and backward of every token, twice forward with checkpointing, and forward for other log-probs."""
    learner, tokens = run.learner, tokens_of_update(run)
    attended = 2 * len(shape.windows) * shape.heads * shape.head_size * (run.prompt + run.reply)
    forward = (2 * shape.multiplied + attended) * tokens
    passes = (3 + learner.recomputed) * learner.steps + learner.reference + (1 if learner.steps > 1 else 0)
    passes += (3 + learner.recomputed) * learner.steps * learner.critic
    return float(forward * passes / (learner.ranks * card.flops * UTILISATION))


def _communicate(shape: ModelShape, run: RunLayout, learner: LearnerLayout, link: float) -> float:
    """Weights gathered for the forward and for the backward pass and gradients reduced in float32, each micro-batch in
    ZeRO-3; below it once an update, or each micro-batch in ZeRO-2."""
    if learner.ranks == 1:
        return 0.0
    teams = learner.ranks // learner.sequence_parallel
    passes = max(-(-tokens_of_update(run) // (teams * learner.tokens)), 1) * learner.steps
    gathers = (2 + learner.recomputed) * passes if learner.stage == 3 else 1
    reduces = passes if learner.stage >= 2 else 1
    bytes = shape.parameters * (gathers * learner.width + reduces * 4)
    return bytes * (learner.ranks - 1) / learner.ranks / link


def _generate(shape: ModelShape, run: RunLayout, engine: EngineLayout, card: Card, cache: int) -> float:
    """A step reads all weights and the keys and values of every running sequence; prompts are computed once."""
    each = -(-run.samples // sum(one.engines for one in run.engines))
    length = run.prompt + run.reply
    together = max(min(engine.sequences, each, cache // length), 1)
    per_token = shape.cache_elements(engine.parallel) * engine.width
    read = shape.parameters * engine.width / engine.parallel + together * (run.prompt + run.reply / 2) * per_token
    steps = run.reply * -(-each // together)
    compute = 2 * shape.multiplied * together / (engine.parallel * card.flops * UTILISATION)
    prefill = 2 * shape.multiplied * run.prompt * each / run.replies / (engine.parallel * card.flops * UTILISATION)
    return steps * max(read / (card.bandwidth * MEMORY_UTILISATION), compute) + prefill
