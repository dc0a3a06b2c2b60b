"""Supervised fine-tuning: the policy learns from demonstrations, with equal weight for all tokens of a reply."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from rlhf.cluster.worker import Worker
from rlhf.controller.build import learner_settings, make_learner
from rlhf.controller.dataset_trainer import DatasetUpdate
from rlhf.controller.run import Counts
from rlhf.data.selection import PromptTokens
from rlhf.data.tasks import Tell, load_sets, mixed, training_tasks
from rlhf.errors import DataError
from rlhf.models.chat import demonstration, prompt_ids
from rlhf.models.replies import ReplyEncoder
from rlhf.models.turn_end import turn_end
from rlhf.recipe.schema import Recipe
from rlhf.rollout.evaluation import SetResult
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.sft import demonstration_batch
from rlhf.types import Message, Segment, Task

Demonstration = tuple[tuple[Message, ...], str]
"""The prompt, and the reply to learn."""


class SftTrainer:
    """A `DatasetTrainer` on demonstrations, without held-out sets."""

    shown = ("sft/nll",)
    evaluates = False

    def __init__(self, learner: RemoteLearner, demonstrations: Iterator[Segment], batch_size: int) -> None:
        self.learner, self._demonstrations, self._batch_size = learner, demonstrations, batch_size

    async def resume(self, checkpoint: Path) -> None:
        await self.learner.load(checkpoint)
        await asyncio.to_thread(deque, islice(self._demonstrations, self.counts.samples), 0)

    async def update(self) -> DatasetUpdate:
        batch = list(islice(self._demonstrations, self._batch_size))
        metrics = await self.learner.imitate(demonstration_batch(batch))
        return DatasetUpdate(metrics=metrics, tokens=sum(int(one.action_mask.sum()) for one in batch))

    async def evaluate(self) -> tuple[SetResult, ...]:
        return ()

    @property
    def counts(self) -> Counts:
        return Counts(samples=self.learner.version * self._batch_size)


async def start_sft(recipe: Recipe, workers: Sequence[Worker], model: str, tell: Tell) -> SftTrainer:
    """Start the ranks on the policy in `model`, and load its demonstrations."""
    learner = make_learner(recipe, workers)
    facts = await learner.start(learner_settings(recipe, model))
    segments = await asyncio.to_thread(rendered, recipe, model, facts["context_tokens"], tell)
    return SftTrainer(learner, segments, recipe.trainer.groups_per_update)


def demonstrations_of(recipe: Recipe, prompt_tokens: PromptTokens, tell: Tell) -> Iterator[Demonstration]:
    """Iterate over as many demonstrations as the run needs, in the order of tasks."""
    count = recipe.trainer.updates * recipe.trainer.groups_per_update
    columns = [str(dataset.demonstration_column) for dataset in recipe.data.train_sets.values()]
    tasks = training_tasks(recipe.data, load_sets(recipe.data.train_sets, asks=recipe.tasks_ask), prompt_tokens, tell)
    lessons = [
        [(task.messages, str(task.row[column])) for task in its] for its, column in zip(tasks, columns, strict=True)
    ]
    order = mixed(recipe.data, lessons, recipe.seed)
    yield from (order[ordinal] for ordinal in range(count))


def rendered(recipe: Recipe, model: str, context_tokens: int, tell: Tell) -> Iterator[Segment]:
    """Iterate over the demonstrations as tokens. Raises `DataError` for one that is longer than the model's context."""
    from rlhf.models.loading import declared_ends, load_tokenizer

    trust = recipe.model.trust_remote_code
    tokenizer = load_tokenizer(model, trust_remote_code=trust)

    arguments = recipe.data.chat_template_arguments
    replies = ReplyEncoder(tokenizer, arguments).token_ids
    for words in turn_end(tokenizer, arguments, declared_ends(model, trust_remote_code=trust)).told:
        tell(words)

    def prompt_tokens(task: Task) -> int:
        return len(prompt_ids(tokenizer, task.messages, arguments))

    def segments() -> Iterator[Segment]:
        for messages, response in demonstrations_of(recipe, prompt_tokens, tell):
            segment = demonstration(tokenizer, messages, response, arguments, replies=replies)
            if len(segment.token_ids) > context_tokens:
                raise DataError(
                    f"a demonstration of {len(segment.token_ids)} tokens is longer than the model's context of "
                    f"{context_tokens}; shorten or drop it (it begins {messages[-1].content[:40]!r})"
                )
            yield segment

    return segments()
