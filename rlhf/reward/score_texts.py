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
    tasks = [(task_of(group[0]), group) for group in groups]
    scored = await asyncio.gather(*(reward(task, [reply_to(task, one) for one in group]) for task, group in tasks))
    return [score for scores in scored for score in scores]


def task_of(question: ReplyToScore) -> Task:
    """Return a task made from text alone. A custom reward reads `prompt`, `label` and `answer` in its row."""
    label = question.label
    return Task(
        id="served",
        messages=(Message(role="user", content=question.prompt),),
        answer=label,
        row={"prompt": question.prompt, "label": label, "answer": label},
    )


def reply_to(task: Task, question: ReplyToScore) -> Trajectory:
    """Return a trajectory of which only the text, or only the tokens, are known."""
    segments = (segment_of(question.token_ids),) if question.token_ids is not None else ()
    return Trajectory(task=task, segments=segments, status=EpisodeStatus.TERMINATED, response=question.response)


def segment_of(token_ids: Sequence[int]) -> Segment:
    """Return a segment of bare tokens: all of them count as the policy's actions."""
    count = len(token_ids)
    return Segment(
        token_ids=np.array(token_ids, np.int32),
        kinds=np.full(count, TokenKind.ACTION, np.int8),
        behaviour_logprobs=np.zeros(count, np.float32),
        versions=np.full(count, -1, np.int32),
    )
