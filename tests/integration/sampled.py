"""What a loop does between two updates, without one: a real engine samples groups, and real ranks learn from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhf.engines.vllm.settings import GenerateRequest
from rlhf.models.config import LoraConfig, ModelConfig, TinyModelConfig
from rlhf.models.loading import load_policy, load_tokenizer
from rlhf.models.tiny import save_tiny
from rlhf.trainer.config import DeepSpeedConfig, OptimizerConfig, TrainerConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.settings import LearnerSettings
from rlhf.types import (
    Completion,
    EpisodeStatus,
    Group,
    Sample,
    Scored,
    Segment,
    Task,
    Ticket,
    TokenKind,
    Trajectory,
    Updated,
)
from rlhf.weight_sync.canary import canary, tolerance_for
from rlhf.weight_sync.publish import Publisher
from tests.engines.vllm.made import ended
from tests.integration.learner_ranks import ProcessWorker
from tests.integration.torch_learner import ThreadedEngine

CONTEXT, REPLY_TOKENS, SAMPLES = 96, 24, 4
PROMPTS = (4, 9, 17, 30, 50, 60)
"""Tokens of the prompts of an update."""
SHAPE = TinyModelConfig(hidden_size=64, intermediate_size=128, max_position_embeddings=CONTEXT)
HOT = SHAPE.model_copy(update={"layers": 8, "tie_word_embeddings": False})
HOT_LOGITS, SHARP = 30.0, 6.0


def hot_folder(folder: Path) -> Path:
    """A model of 8 layers whose logits reach +-30, as those of large models do."""
    save_tiny(HOT, 0, folder)
    model, tokenizer = load_policy(str(folder)), load_tokenizer(str(folder))
    ids = torch.arange(3, 3 + CONTEXT // 2)[None]
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(HOT_LOGITS / model(ids).logits.abs().max())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def sharp_folder(folder: Path) -> Path:
    """A model that looks at few tokens, and so cares where they are. One with small random weights looks at all alike:
    a rope of half the frequencies moves no log-prob of it by more than 0.004, which in 16 bits is rounding."""
    save_tiny(SHAPE, 0, folder)
    model, tokenizer = load_policy(str(folder)), load_tokenizer(str(folder))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
                weight.mul_(SHARP)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Sampled:
    """An engine and a learner that has published to it."""

    def __init__(self, engine: ThreadedEngine, learner: RemoteLearner, publisher: Publisher) -> None:
        self.engine, self.learner, self.publisher = engine, learner, publisher

    async def update(self, *, temperature: float = 1.0) -> Updated:
        """One update on groups that the engine samples now, and its publish."""
        updated = await self.learner.update(self.groups(temperature))
        await self.publisher.publish()
        return updated

    def groups(self, temperature: float = 1.0) -> list[Group]:
        """Replies to prompts of many lengths, with rewards that are drawn."""
        version = self.learner.version
        rng = np.random.default_rng(version)
        prompts = [rng.integers(3, 250, length).astype(np.int32) for length in PROMPTS for _ in range(SAMPLES)]
        for index in range(len(prompts)):
            prompts[index] = prompts[index - index % SAMPLES]
        requests = [
            GenerateRequest(str(n), prompt, temperature=temperature, max_tokens=REPLY_TOKENS, seed=1000 * version + n)
            for n, prompt in enumerate(prompts)
        ]
        self.engine.worker.submit(requests)
        replies: dict[str, Any] = {}
        while len(replies) < len(requests):
            replies |= ended(self.engine.worker.collect(60))
        assert all(isinstance(reply, Completion) for reply in replies.values()), replies
        samples = [_sample(prompt, replies[str(n)], float(rng.integers(0, 2))) for n, prompt in enumerate(prompts)]
        return [
            Group(
                ticket=Ticket(ordinal=n, version=version),
                task=Task(id=str(n), messages=()),
                samples=tuple(samples[n * SAMPLES : (n + 1) * SAMPLES]),
            )
            for n in range(len(PROMPTS))
        ]


async def started(
    engine: ThreadedEngine,
    workers: list[ProcessWorker],
    folder: Path,
    *,
    dtype: str = "float32",
    attention: str = "sdpa",
    temperature: float = 1.0,
    lora: LoraConfig | None = None,
    stage: int = 0,
    **changes: Any,
) -> Sampled:
    """Ranks on the folder's model, joined with the engine, the path between them proved."""
    config = TrainerConfig(
        updates=400,
        tokens_per_microbatch=600,
        optimizer=OptimizerConfig(learning_rate=1e-3, schedule="constant"),
        deepspeed=DeepSpeedConfig(ranks=len(workers), zero_stage=stage, timeout_seconds=60, start_timeout_seconds=120),
        **changes,
    )
    learner = RemoteLearner(workers, config, plays=True)
    model = ModelConfig(path=str(folder), dtype=dtype, attention=attention, lora=lora)
    await learner.start(LearnerSettings(model_path=str(folder), model=model, trainer=config, temperature=temperature))
    publisher = Publisher(
        learner, [engine], canary=canary(256, CONTEXT, tolerance_for(dtype)), phase_timeout_seconds=120
    )
    await publisher.connect()
    await publisher.verify()
    return Sampled(engine, learner, publisher)


def _sample(prompt: np.ndarray, reply: Completion, reward: float) -> Sample:
    actions = len(reply.token_ids)
    before = np.zeros(len(prompt))
    segment = Segment(
        token_ids=np.concatenate([prompt, reply.token_ids]).astype(np.int32),
        kinds=np.array([TokenKind.PROMPT] * len(prompt) + [TokenKind.ACTION] * actions, np.int8),
        behaviour_logprobs=np.concatenate([before, reply.behaviour_logprobs]).astype(np.float32),
        versions=np.concatenate([before - 1, reply.versions]).astype(np.int32),
    )
    trajectory = Trajectory(task=Task(id="", messages=()), segments=(segment,), status=EpisodeStatus.TERMINATED)
    return Sample(trajectory=trajectory, score=Scored(value=reward))
