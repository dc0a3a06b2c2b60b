"""One measured process: `python -m benchmarks.memory.process {json}` does a rank's or an engine's work and prints the
most memory that it held, in bytes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

SEQUENCE_TOKENS = 128
PROMPT_TOKENS = 32


def main() -> None:
    """Do the work of the JSON on the command line: `{"kind": "learner" | "engine" | "nothing", …}`."""
    case = json.loads(sys.argv[1])
    {"learner": learn, "engine": generate}[case["kind"]](case)
    print("PEAK", peak_resident_bytes(), flush=True)


def peak_resident_bytes() -> int:
    """The most physical memory that this process held at once (`VmHWM`), in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def learn(case: dict[str, Any]) -> None:
    """Two optimizer steps of two micro-batches each, as one of `ranks` ranks."""
    from rlhf.recipe.loading import load_recipe
    from rlhf.trainer.batching.batch import build_minibatches
    from rlhf.trainer.rank.learner_worker import LearnerWorker
    from rlhf.trainer.settings import LearnerSettings
    from rlhf.weight_sync.types import GroupAddress

    recipe = load_recipe(Path("recipes/quickstart.yaml"), case["overrides"]).recipe
    settings = LearnerSettings(model_path=case["folder"], model=recipe.model, trainer=recipe.trainer)
    worker, ranks = LearnerWorker(loopback=True), recipe.trainer.deepspeed.ranks
    worker.start(case["rank"], ranks, GroupAddress(**case["address"]), settings)
    tokens = recipe.trainer.tokens_per_microbatch
    batch = made_batch(2 * ranks * tokens // SEQUENCE_TOKENS)
    parts = build_minibatches(batch, minibatches=1, ranks=ranks, tokens_per_microbatch=tokens)
    for _ in range(2):
        worker.policy.imitate(parts[case["rank"]])


def made_batch(sequences: int) -> Any:
    """Sequences of `SEQUENCE_TOKENS` random tokens, of which all but the prompt are learnt."""
    from rlhf.trainer.batching.batch import assemble
    from rlhf.types import Segment, TokenKind

    rng = np.random.default_rng(0)
    actions = SEQUENCE_TOKENS - PROMPT_TOKENS
    kinds = np.array([TokenKind.PROMPT] * PROMPT_TOKENS + [TokenKind.ACTION] * actions, np.int8)
    zeros = np.zeros(SEQUENCE_TOKENS)
    segments = [
        Segment(
            token_ids=rng.integers(3, 250, SEQUENCE_TOKENS).astype(np.int32),
            kinds=kinds,
            behaviour_logprobs=zeros.astype(np.float32),
            versions=zeros.astype(np.int32),
        )
        for _ in range(sequences)
    ]
    return assemble(
        [(segment,) for segment in segments],
        sample_groups=range(sequences),
        samples=[(index, 0) for index in range(sequences)],
        groups=sequences,
    )


def generate(case: dict[str, Any]) -> None:
    """Replies to 64 prompts at once."""
    from rlhf.engines.vllm.settings import EngineSettings, GenerateRequest
    from rlhf.engines.vllm.vllm_engine import VllmEngine
    from rlhf.recipe.loading import load_recipe

    recipe = load_recipe(Path("recipes/quickstart.yaml"), case["overrides"]).recipe
    engine = VllmEngine(
        EngineSettings(model_path=case["folder"], model=recipe.model, rollout=recipe.rollout, weight_transfer="gloo")
    )
    rng = np.random.default_rng(0)
    for index in range(64):
        ids = rng.integers(3, 250, PROMPT_TOKENS).astype(np.int32)
        engine.add(GenerateRequest(str(index), ids, 1.0, 32, index))
    while engine.busy:
        engine.step()


if __name__ == "__main__":
    main()
