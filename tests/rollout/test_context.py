"""A context that grows: what is known of every token, and what is not."""

from __future__ import annotations

import numpy as np

from rlhf.rollout.context import Context
from rlhf.types import Completion, FinishReason, Prompt


def tokens(count: int) -> Prompt:
    return Prompt(token_ids=np.arange(count, dtype=np.int32))


def said(prompt: int, tokens: int, experts: int | None) -> Completion:
    """A reply to `prompt` tokens; of all but its last the engine chose `experts`."""
    return Completion(
        token_ids=np.arange(tokens, dtype=np.int32),
        behaviour_logprobs=np.zeros(tokens, np.float32),
        versions=np.zeros(tokens, np.int32),
        finish_reason=FinishReason.STOP,
        routing=None if experts is None else np.full((prompt + tokens - 1, 1, 2), experts, np.int16),
    )


def test_a_token_keeps_the_experts_that_it_was_sampled_with() -> None:
    """The engine may say something else of it when it reads it again, for the next reply."""
    context = Context(tokens(3))
    context.append_reply(said(3, 4, experts=1))
    context.append(tokens(2))
    context.append_reply(said(9, 2, experts=2))
    routing = context.segment().routing
    assert routing is not None
    assert routing.shape == (11, 1, 2)
    assert routing[:, 0, 0].tolist() == [1] * 6 + [2] * 4 + [-1], "the last token was never read"


def test_a_reply_whose_experts_are_not_known_takes_none_from_the_others() -> None:
    context = Context(tokens(3))
    context.append_reply(said(3, 4, experts=None))
    context.append_reply(said(7, 2, experts=2))
    routing = context.segment().routing
    assert routing is not None
    assert routing[:, 0, 0].tolist() == [2] * 8 + [-1]


def test_an_engine_that_says_nothing_of_experts_leaves_none() -> None:
    context = Context(tokens(3))
    context.append_reply(said(3, 4, experts=None))
    assert context.segment().routing is None
