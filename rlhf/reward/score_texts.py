"""Score plain texts with a reward: replies to one question become a group, so that a judge can compare them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from rlhf.protocols import RewardFunction
from rlhf.reward.bodies import ReplyToScore
from rlhf.types import EpisodeStatus, Message, Scored, Segment, Task, TokenKind, Trajectory, Unscored


async def score_replies(reward: RewardFunction, questions: Sequence[ReplyToScore]) -> list[Scored | Unscored]:
    """One score per question, in order. Adjacent questions with the same prompt and label form one group."""
    groups = [list(group) for _, group in groupby(questions, key=lambda question: (question.prompt, question.label))]
    scored = await asyncio.gather(*(_score_group(reward, group) for group in groups))
    return [score for scores in scored for score in scores]


async def _score_group(reward: RewardFunction, group: Sequence[ReplyToScore]) -> list[Scored | Unscored]:
    """Score texts or tokens. A custom reward reads `prompt`, `label` and `answer` in its row."""
    prompt, label = group[0].prompt, group[0].label
    row = {"prompt": prompt, "label": label, "answer": label}
    task = Task(id="served", messages=(Message(role="user", content=prompt),), answer=label, row=row)
    replies = [
        Trajectory(
            task=task,
            segments=() if one.token_ids is None else (segment_of(one.token_ids),),
            status=EpisodeStatus.TERMINATED,
            response=one.response,
        )
        for one in group
    ]
    return await reward(task, replies)


def segment_of(token_ids: Sequence[int]) -> Segment:
    """Return a segment of bare tokens: all of them count as the policy's actions."""
    count = len(token_ids)
    return Segment(
        token_ids=np.array(token_ids, np.int32),
        kinds=np.full(count, TokenKind.ACTION, np.int8),
        behaviour_logprobs=np.zeros(count, np.float32),
        versions=np.full(count, -1, np.int32),
    )
