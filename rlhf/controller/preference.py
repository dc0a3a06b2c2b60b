"""Training on preference pairs: a reward model, or a policy by DPO, IPO or KTO."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path

from rlhf.chat.image_reader import ImageReader
from rlhf.chat.reply_tokens import ReplyEncoder
from rlhf.chat.templates import arguments_with_tools, check_parts, comparison
from rlhf.chat.turn_end import turn_end
from rlhf.cluster.worker import Worker
from rlhf.controller.build import learner_of, start_ranks
from rlhf.controller.dataset_trainer import DatasetTrainer, DatasetUpdate
from rlhf.data.config import DatasetConfig
from rlhf.data.few_shot import with_shots
from rlhf.data.overlap import check_overlap, questions_of_pairs
from rlhf.data.preference import PreferencePair
from rlhf.data.sources import load_pairs
from rlhf.data.tasks import Tell, mixed
from rlhf.errors import DataError
from rlhf.recipe.schema import Recipe
from rlhf.rollout.evaluation import SetResult
from rlhf.trainer.batching.pairs import PairOfSegments
from rlhf.trainer.pair_learner import PreferenceLearner, RewardLearner

Fitted = Callable[[PreferencePair], PairOfSegments | None]
"""A pair as tokens, or None when the model's context is too short for it."""


class PreferenceTrainer(DatasetTrainer):
    """Trains on preference pairs; `held_out` pairs are keyed by the name of their set."""

    shown = ("pairs/loss", "pairs/accuracy")
    learner: RewardLearner

    def __init__(
        self,
        learner: RewardLearner,
        pairs: Iterator[PairOfSegments],
        held_out: Mapping[str, Sequence[PairOfSegments]],
        batch_size: int,
    ) -> None:
        super().__init__(learner, batch_size)
        self._pairs, self._held_out, self.evaluates = pairs, held_out, bool(held_out)

    async def resume(self, checkpoint: Path) -> None:
        await super().resume(checkpoint)
        await asyncio.to_thread(deque, islice(self._pairs, self.counts.samples), 0)

    async def update(self) -> DatasetUpdate:
        pairs = list(islice(self._pairs, self.batch_size))
        metrics = await self.learner.prefer(pairs)
        tokens = sum(len(segment.token_ids) for pair in pairs for segment in (pair.chosen, pair.rejected))
        return DatasetUpdate(metrics=metrics, tokens=tokens)

    async def evaluate(self) -> tuple[SetResult, ...]:
        return tuple(
            [
                SetResult(
                    name=name,
                    problems=len(pairs),
                    metrics={
                        metric.removeprefix("pairs/"): value
                        for metric, value in (await self.learner.evaluate(pairs)).items()
                    },
                )
                for name, pairs in self._held_out.items()
            ]
        )


async def start_preference(recipe: Recipe, workers: Sequence[Worker], model: str, tell: Tell) -> PreferenceTrainer:
    """Start the ranks on `model`, a policy or the start of a reward model, and load its pairs."""
    data = recipe.data
    train = await asyncio.to_thread(told_pairs, data.train_sets, tell)
    held_out = await asyncio.to_thread(
        told_pairs, {data.eval_key(name): one for name, one in data.eval_sets.items()}, tell
    )
    check_overlap(
        data,
        {key: questions_of_pairs(pairs) for key, pairs in train.items()},
        {name: questions_of_pairs(held_out[data.eval_key(name)]) for name in data.eval_sets},
        tell,
    )
    train, held_out = (
        {key: with_shots(pairs, data, key, recipe.seed) for key, pairs in sets.items()} for sets in (train, held_out)
    )
    learner = learner_of(PreferenceLearner if recipe.kind == "preference" else RewardLearner, recipe, workers)
    facts = await start_ranks(learner, recipe, model, tell)
    fitted = await asyncio.to_thread(pair_renderer, recipe, model, facts["context_tokens"], tell)
    return PreferenceTrainer(
        learner,
        in_order(recipe, list(train.values()), fitted),
        {
            name: await asyncio.to_thread(all_fitted, pairs, fitted, key, tell)
            for name, (key, pairs) in zip(data.eval_sets, held_out.items(), strict=True)
        },
        recipe.trainer.groups_per_update,
    )


def told_pairs(sets: Mapping[str, DatasetConfig], tell: Tell) -> dict[str, Sequence[PreferencePair]]:
    """Load the pairs of every dataset, by its key, and report rows that make no pair. Raises `DataError`."""
    found = {key: load_pairs(config) for key, config in sets.items()}
    for key, one in found.items():
        if one.dropped:
            tell(f"{key}: {one.describe()}")
    return {key: one.pairs for key, one in found.items()}


def in_order(recipe: Recipe, pairs: Sequence[Sequence[PreferencePair]], fitted: Fitted) -> Iterator[PairOfSegments]:
    """Iterate over the pairs in the order of training, endlessly, without those that are too long. Raises `DataError`
    when all are."""
    order, total = mixed(recipe.data, pairs, recipe.seed), sum(map(len, pairs))
    skipped = 0
    for ordinal in count():
        pair = fitted(order[ordinal])
        skipped = 0 if pair else skipped + 1
        if pair:
            yield pair
        elif skipped > total:
            raise DataError(f"none of {total} pairs fits into the model's context; shorten them, or use another model")


def all_fitted(pairs: Sequence[PreferencePair], fitted: Fitted, key: str, tell: Tell) -> list[PairOfSegments]:
    """Return the pairs that fit, once each, and report the number of the others. Raises `DataError` when none fits."""
    found = [pair for pair in map(fitted, pairs) if pair]
    if len(found) < len(pairs):
        tell(f"{key}: {len(pairs) - len(found)} of {len(pairs)} pairs left out: longer than the model's context")
    if not found:
        raise DataError(f"{key}: none of {len(pairs)} pairs fits into the model's context")
    return found


def pair_renderer(recipe: Recipe, model: str, context_tokens: int, tell: Tell) -> Fitted:
    """Return a function that renders pairs by the chat template of `model`."""
    from rlhf.models.loading import declared_ends, load_tokenizer

    trust = recipe.model.trust_remote_code
    tokenizer = load_tokenizer(model, trust_remote_code=trust)
    arguments = recipe.data.chat_template_arguments
    replies = ReplyEncoder(tokenizer, arguments).token_ids
    images = ImageReader(model, trust_remote_code=trust) if recipe.model.tower else None
    for words in turn_end(tokenizer, arguments, declared_ends(model, trust_remote_code=trust)).told:
        tell(words)

    def fitted(pair: PreferencePair) -> PairOfSegments | None:
        check_parts(tokenizer, pair.prompt, pair.tools)
        offered = arguments_with_tools(arguments, pair.tools)
        chosen, rejected = comparison(
            tokenizer, pair.prompt, pair.chosen, pair.rejected, offered, replies=replies, images=images
        )
        made = PairOfSegments(chosen=chosen, rejected=rejected, margin=pair.margin or 0.0)
        return made if made.tokens <= context_tokens else None

    return fitted
