"""Supervised fine-tuning: the policy learns from demonstrations, with equal weight for all tokens of a reply."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from rlhf.chat.image_reader import ImageReader, with_images
from rlhf.chat.reply_tokens import ReplyEncoder, conversation
from rlhf.chat.templates import ChatTokenizer, arguments_with_tools, check_parts, demonstration, prompt_ids
from rlhf.chat.turn_end import turn_end
from rlhf.cluster.worker import Worker
from rlhf.controller.build import make_learner, start_ranks
from rlhf.controller.dataset_trainer import DatasetTrainer, DatasetUpdate
from rlhf.data.demonstrations import Demonstration
from rlhf.data.few_shot import with_shots
from rlhf.data.selection import doubtful, of_right_length
from rlhf.data.sources import load_demonstrations
from rlhf.data.tasks import Tell, mixed
from rlhf.errors import DataError, ModelError
from rlhf.recipe.schema import Recipe
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.sft import demonstration_batch
from rlhf.types import Segment

RenderDemonstration = Callable[[Demonstration], Segment]
"""A demonstration as tokens."""


class SftTrainer(DatasetTrainer):
    """Trains on demonstrations, without held-out sets."""

    shown = ("sft/nll",)

    def __init__(self, learner: RemoteLearner, demonstrations: Iterator[Segment], batch_size: int) -> None:
        super().__init__(learner, batch_size)
        self._demonstrations = demonstrations

    async def resume(self, checkpoint: Path) -> None:
        await super().resume(checkpoint)
        await asyncio.to_thread(deque, islice(self._demonstrations, self.counts.samples), 0)

    async def update(self) -> DatasetUpdate:
        batch = list(islice(self._demonstrations, self.batch_size))
        metrics = await self.learner.imitate(demonstration_batch(batch))
        return DatasetUpdate(metrics=metrics, tokens=sum(int(one.action_mask.sum()) for one in batch))


async def start_sft(recipe: Recipe, workers: Sequence[Worker], model: str, tell: Tell) -> SftTrainer:
    """Start the ranks on the policy in `model`, and load its demonstrations."""
    learner = make_learner(recipe, workers)
    facts = await start_ranks(learner, recipe, model, tell)
    segments = await asyncio.to_thread(rendered, recipe, model, facts["context_tokens"], tell)
    return SftTrainer(learner, segments, recipe.trainer.groups_per_update)


def rendered(recipe: Recipe, model: str, context_tokens: int, tell: Tell) -> Iterator[Segment]:
    """Iterate over as many demonstrations as the run needs, as tokens, in the order of tasks.

    Raises `DataError` for one that is longer than the model's context, and `ModelError` for one that the chat template
    cannot render; both before the first is trained.
    """
    from rlhf.models.loading import declared_ends, load_tokenizer

    trust = recipe.model.trust_remote_code
    tokenizer, ends = load_tokenizer(model, trust_remote_code=trust), declared_ends(model, trust_remote_code=trust)
    for words in turn_end(tokenizer, recipe.data.chat_template_arguments, ends).told:
        tell(words)
    images = ImageReader(model, trust_remote_code=trust) if recipe.model.tower else None
    render = demonstration_renderer(recipe, tokenizer, images)
    lessons = [
        selected(recipe, load_demonstrations(config), key, tokenizer, context_tokens, tell, images)
        for key, config in recipe.data.train_sets.items()
    ]
    order = mixed(recipe.data, lessons, recipe.seed)
    return (render(order[place]) for place in range(recipe.trainer.updates * recipe.trainer.groups_per_update))


def selected(
    recipe: Recipe,
    demonstrations: Sequence[Demonstration],
    key: str,
    tokenizer: ChatTokenizer,
    context: int,
    tell: Tell,
    images: ImageReader | None = None,
) -> list[Demonstration]:
    """Return the demonstrations, after the examples of their set, whose prompts have the right length. Raises
    `DataError` for the first that is longer than the context, and `ModelError` for one that the chat template cannot
    render."""
    arguments, render = recipe.data.chat_template_arguments, demonstration_renderer(recipe, tokenizer, images)

    def prompt_tokens(one: Demonstration) -> int:
        token_ids = prompt_ids(tokenizer, one.prompt, arguments_with_tools(arguments, one.tools))
        return len(with_images(token_ids, one.prompt, images).token_ids)

    shown = with_shots(demonstrations, recipe.data, key, recipe.seed)
    kept = of_right_length(shown, recipe.data.train_sets[key], prompt_tokens, key, tell)
    for one in doubtful(kept, context):
        if (length := len(render(one).token_ids)) > context:
            raise DataError(
                f"{key}: {one.where}: the demonstration has {length} tokens, more than the model's context of "
                f"{context}; shorten or remove it"
            )
    return kept


def demonstration_renderer(
    recipe: Recipe, tokenizer: ChatTokenizer, images: ImageReader | None = None
) -> RenderDemonstration:
    """Return a function that renders demonstrations by the chat template. It raises `ModelError`, which names the
    row."""
    arguments = recipe.data.chat_template_arguments
    replies = ReplyEncoder(tokenizer, arguments)

    def render(one: Demonstration) -> Segment:
        offered = arguments_with_tools(arguments, one.tools)
        reply = one.messages[one.replies[-1]]
        try:
            check_parts(tokenizer, one.messages, one.tools)
            if len(one.replies) == 1 and not reply.tool_calls and not reply.reasoning_content:
                return demonstration(
                    tokenizer, one.prompt, reply.content, offered, replies=replies.token_ids, images=images
                )
            return conversation(tokenizer, one.messages, offered, replies=replies, imitated=one.replies, images=images)
        except ModelError as error:
            raise ModelError(f"{one.where}: {error}") from None

    return render
