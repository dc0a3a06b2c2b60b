"""One episode: the policy answers a task, and every token is kept as it was sampled."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlhf.protocols import RolloutEngine
from rlhf.types import (
    Completion,
    Failed,
    FinishReason,
    Message,
    Prompt,
    Sampling,
    Segment,
    Status,
    Task,
    Timings,
    TokenKind,
    Trajectory,
    Turn,
)


class Renderer(Protocol):
    """Messages to tokens, and sampled tokens to the text that rewards read."""

    def prompt(self, messages: tuple[Message, ...]) -> Prompt: ...
    def text(self, token_ids: NDArray[np.int32]) -> str: ...


async def play(
    task: Task,
    *,
    engine: RolloutEngine,
    renderer: Renderer,
    sampling: Sampling,
    max_context_tokens: int,
    seed: int,
    session: str,
) -> Trajectory | Failed:
    """Play one single-turn episode. A prompt that leaves no room for a reply is `Failed("prompt_too_long")`."""
    prompt = renderer.prompt(task.messages)
    room = max_context_tokens - len(prompt.token_ids)
    if room < 1:
        return Failed(
            kind="prompt_too_long",
            detail=f"task {task.id}: {len(prompt.token_ids)} prompt tokens in a context of {max_context_tokens}",
        )
    began = time.monotonic()
    completion = await engine.generate(
        prompt, sampling=replace(sampling, max_tokens=min(sampling.max_tokens, room)), seed=seed, session=session
    )
    stopped = completion.finish_reason is FinishReason.STOP
    return Trajectory(
        task=task,
        segments=(single_turn_segment(prompt, completion),),
        status=Status.TERMINATED if stopped else Status.TRUNCATED,
        response=renderer.text(completion.token_ids),
        engine=completion.engine,
        timings=Timings(generate_seconds=time.monotonic() - began),
    )


def single_turn_segment(prompt: Prompt, completion: Completion) -> Segment:
    """Prompt and reply as one context `[P + N]`."""
    before, after = len(prompt.token_ids), len(completion.token_ids)
    stopped = completion.finish_reason is FinishReason.STOP
    return Segment(
        token_ids=np.concatenate([prompt.token_ids, completion.token_ids]).astype(np.int32),
        kinds=np.repeat(np.array([TokenKind.PROMPT, TokenKind.ACTION], dtype=np.int8), [before, after]),
        logprobs=np.concatenate([np.zeros(before, np.float32), completion.logprobs]),
        versions=np.concatenate([np.full(before, -1, np.int32), completion.versions]),
        turns=(Turn(start=before, stop=before + after, terminated=stopped, truncated=not stopped),),
    )
