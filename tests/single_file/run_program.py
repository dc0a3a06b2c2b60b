"""A few updates of the single file in a process of its own, for `test_grpo_run`: prints one JSON line about the engine.

`agreement`: largest difference between the log-probs of vLLM's replies and the learner's, after the last publish.
`movement`: the same against the policy as it was before the first update. `stale_head`: the same after more learning
and a publish that leaves the tied head as it was.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from tests.single_file.loaded import load

grpo = load()


def main() -> None:
    grpo.prepare_process()
    grpo.reward = ones  # 20 steps of warm-up teach no sorting, and equal rewards would teach nothing
    settings = grpo.Settings(
        warmup_steps=20,
        updates=3,
        learning_rate=2e-3,
        groups=6,
        group_size=4,
        minibatches=2,
        kl_coefficient=0.1,
        temperature=0.9,
    )
    policy, engine = grpo.train(settings)
    figures = {"agreement": difference(policy, replies(engine, settings), settings)}
    figures["movement"] = difference(started(settings), replies(engine, settings), settings)

    with torch.no_grad():
        policy.get_input_embeddings().weight.mul_(1.5)
    grpo._repack_tied_head = lambda model: None
    engine.publish(policy)
    figures["stale_head"] = difference(policy, replies(engine, settings), settings)
    print(json.dumps(figures))


def ones(problem: str, reply: list[int]) -> float:
    return float(reply.count(grpo.encode("1")[0]))


def replies(engine: Any, settings: Any) -> list[Any]:
    _, held_out = grpo.problems(settings.seed)
    groups = engine.answer(held_out[:8], 3, settings.temperature)
    return [sample for group in groups for sample in group]


def started(settings: Any) -> Any:
    """The warmed-up policy, made once more."""
    training, _ = grpo.problems(settings.seed)
    policy = grpo.tiny_model(settings.seed)
    grpo.warm_up(policy, training, settings)
    return policy


def difference(policy: Any, samples: list[Any], settings: Any) -> float:
    """The largest over all tokens of all replies, one unpadded forward pass each."""
    assert sum(len(sample.reply) for sample in samples) >= len(samples)
    return max(one_difference(policy, sample, settings.temperature) for sample in samples)


def one_difference(policy: Any, sample: Any, temperature: float) -> float:
    ids = torch.tensor([grpo.encode(sample.problem + "=") + sample.reply])
    with torch.no_grad():
        logprobs = torch.log_softmax(policy(input_ids=ids).logits[0].double() / temperature, dim=-1)
    before = ids.shape[1] - len(sample.reply)
    own = torch.stack([logprobs[before + index - 1, token] for index, token in enumerate(sample.reply)])
    return (own - torch.tensor(sample.logprobs)).abs().max().item()


if __name__ == "__main__":
    main()
