"""Made groups of episodes for the learner's tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlhf.trainer.batching.batch import Batch
from rlhf.trainer.batching.batch import build_batch as bare_batch
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.credit.advantages import with_advantages
from rlhf.types import EpisodeStatus, Group, Sample, Scored, Segment, Task, Ticket, TokenKind, Trajectory, Unscored


def made_segment(rng: np.random.Generator, prompt: int, actions: int, logprob: float = -5.5) -> Segment:
    length = prompt + actions
    kinds = np.array([TokenKind.PROMPT] * prompt + [TokenKind.ACTION] * actions, np.int8)
    return Segment(
        token_ids=rng.integers(3, 250, length).astype(np.int32),
        kinds=kinds,
        behaviour_logprobs=np.where(kinds == TokenKind.ACTION, rng.normal(logprob, 0.1, length), 0).astype(np.float32),
        versions=np.zeros(length, np.int32),
    )


def made_groups(count: int = 6, size: int = 4, *, seed: int = 0, longest_prompt: int = 30) -> list[Group]:
    """Groups with prompts and replies of many lengths, and rewards 0 or 1."""
    rng = np.random.default_rng(seed)
    groups = []
    for ordinal in range(count):
        task = Task(id=str(ordinal), messages=())
        prompt = int(rng.integers(4, longest_prompt))
        samples = []
        for _ in range(size):
            segment = made_segment(rng, prompt, int(rng.integers(1, 12)))
            trajectory = Trajectory(task=task, segments=(segment,), status=EpisodeStatus.TERMINATED)
            samples.append(Sample(trajectory=trajectory, score=Scored(value=float(rng.integers(0, 2)))))
        groups.append(Group(ticket=Ticket(ordinal=ordinal, version=0), task=task, samples=tuple(samples)))
    return groups


def rewritten_group(turns: int = 8, *, thinking: int = 6, answer: int = 2, size: int = 2) -> Group:
    """Episodes of an agent that drops the thinking of earlier replies: a context is the prompt, the answers so
    far and what came after them. The last reply but one is asked for twice, with the same context."""
    rng, task = np.random.default_rng(5), Task(id="0", messages=())
    samples = []
    for reward in range(size):
        context, segments = rng.integers(3, 250, 10).astype(np.int32), []
        for turn in range(turns):
            for _ in range(1 + (turn == turns - 2)):
                reply = made_segment(rng, 0, thinking + answer)
                segments.append(_replied(context, reply))
            context = np.concatenate([context, reply.token_ids[thinking:], rng.integers(3, 250, 3).astype(np.int32)])
        trajectory = Trajectory(task=task, segments=tuple(segments), status=EpisodeStatus.TERMINATED)
        samples.append(Sample(trajectory=trajectory, score=Scored(value=float(reward))))
    return Group(ticket=Ticket(ordinal=0, version=0), task=task, samples=tuple(samples))


def _replied(context: np.ndarray, reply: Segment) -> Segment:
    zeros = np.zeros(len(context))
    return Segment(
        token_ids=np.concatenate([context, reply.token_ids]),
        kinds=np.concatenate([np.full(len(context), TokenKind.PROMPT, np.int8), reply.kinds]),
        behaviour_logprobs=np.concatenate([zeros.astype(np.float32), reply.behaviour_logprobs]),
        versions=np.concatenate([zeros.astype(np.int32), reply.versions]),
    )


def without_score(group: Group, index: int) -> Group:
    """The same group, one of its samples unscored."""
    samples = list(group.samples)
    samples[index] = Sample(trajectory=samples[index].trajectory, score=Unscored(kind="timeout"))
    return Group(ticket=group.ticket, task=group.task, samples=tuple(samples))


def with_one_prompt(group: Group) -> Group:
    """The same group, every sample with the first one's prompt."""
    first = group.samples[0].trajectory.segments[0]
    prompt = first.token_ids[first.kinds == TokenKind.PROMPT]
    return replace(group, samples=tuple(_with_prompt(sample, prompt) for sample in group.samples))


def _with_prompt(sample: Sample, prompt: np.ndarray) -> Sample:
    (segment,) = sample.trajectory.segments
    token_ids = np.where(segment.action_mask, segment.token_ids, 0)
    token_ids[: len(prompt)] = prompt
    changed = replace(segment, token_ids=token_ids.astype(np.int32))
    return replace(sample, trajectory=replace(sample.trajectory, segments=(changed,)))


def made_batch(groups: list[Group], aggregation: str = "token_mean") -> Batch:
    """A batch with group-relative advantages."""
    config = TrainerConfig(loss={"aggregation": aggregation})
    batch, _ = with_advantages(bare_batch(groups, aggregation=aggregation), config, 0.0)
    return batch
