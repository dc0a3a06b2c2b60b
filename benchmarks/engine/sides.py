"""One side, in a process of its own: `python -m benchmarks.engine.sides SIDE MODEL SEQUENCES`. For each line that it
reads it generates all replies, and prints what they cost."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

PROMPT_TOKENS, REPLY_TOKENS = 24, 64
DEADLINE_SECONDS = 600.0


def settings_of(model: str, sequences: int) -> Any:
    from rlhf.engines.config import RolloutConfig
    from rlhf.engines.vllm.settings import EngineSettings
    from rlhf.models.config import ModelConfig

    rollout = RolloutConfig(max_sequences=sequences, kv_cache_megabytes=1024, max_context_tokens=128)
    return EngineSettings(model_path=model, model=ModelConfig(path=model, dtype="float32"), rollout=rollout)


def prompts_of(sequences: int) -> list[list[int]]:
    drawn = np.random.default_rng(0).integers(3, 250, (sequences, PROMPT_TOKENS))
    return [row.tolist() for row in drawn]


def ours(model: str, sequences: int, timer: Timer) -> Callable[[], int]:
    """Our engine as a worker: requests in, replies out."""
    from rlhf.engines.vllm.engine_worker import EngineWorker
    from rlhf.engines.vllm.settings import GenerateRequest
    from rlhf.types import Completion

    worker = EngineWorker("engine-0", settings_of(model, sequences))
    worker.start()
    worker._thread.run(lambda engine: timer(engine._core), awaited="timer", timeout_seconds=60)
    prompts = [np.array(prompt, np.int32) for prompt in prompts_of(sequences)]

    def generate() -> int:
        worker.submit([GenerateRequest(f"r{n}", prompt, 1.0, REPLY_TOKENS, seed=n) for n, prompt in enumerate(prompts)])
        lengths: list[int] = []
        ends = time.monotonic() + DEADLINE_SECONDS
        while len(lengths) < sequences and time.monotonic() < ends:
            replies = worker.collect(1.0)
            lengths += [len(reply.token_ids) for _, reply in replies if isinstance(reply, Completion)]
        return sum(lengths)

    return generate


def bare(model: str, sequences: int, timer: Timer) -> Callable[[], int]:
    """`vllm.LLM.generate` on the same arguments."""
    from dataclasses import fields

    import vllm

    from rlhf.engines.vllm.engine_arguments import engine_args

    arguments = engine_args(settings_of(model, sequences))
    llm = vllm.LLM(**{one.name: getattr(arguments, one.name) for one in fields(arguments)})
    timer(llm.llm_engine.engine_core.engine_core)
    prompts: Any = [{"prompt_token_ids": prompt} for prompt in prompts_of(sequences)]
    params = [sampling(n) for n in range(sequences)]
    return lambda: sum(len(one.outputs[0].token_ids) for one in llm.generate(prompts, params, use_tqdm=False))


def every_step(model: str, sequences: int, timer: Timer) -> Callable[[], int]:
    """vLLM's engine, asked after each step for all that was sampled until then, as ours did at first (4a29253)."""
    from vllm.inputs.engine import tokens_input
    from vllm.v1.engine.llm_engine import LLMEngine

    from rlhf.engines.vllm.engine_arguments import engine_args

    engine = LLMEngine.from_engine_args(engine_args(settings_of(model, sequences)))
    timer(engine.engine_core.engine_core)
    prompts = prompts_of(sequences)

    def generate() -> int:
        for n, prompt in enumerate(prompts):
            engine.add_request(f"r{n}", tokens_input(prompt), sampling(n, flat_logprobs=True))
        ended: list[Any] = []
        while engine.has_unfinished_requests():
            ended += [output for output in engine.step() if output.finished]
        return sum(len(output.outputs[0].token_ids) for output in ended)

    return generate


def sampling(seed: int, **more: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=1.0, max_tokens=REPLY_TOKENS, seed=seed, ignore_eos=True, logprobs=0, detokenize=False, **more
    )


class Timer:
    """Counts the processor seconds of the calls that run the model and sample, and of vLLM's scheduler."""

    def __init__(self) -> None:
        self.model = self.scheduler = 0.0

    def __call__(self, core: Any) -> None:
        for name in ("execute_model", "sample_tokens"):
            self._count(core.model_executor, name, "model")
        for name in ("schedule", "update_from_output"):
            self._count(core.scheduler, name, "scheduler")

    def _count(self, of: Any, name: str, figure: str) -> None:
        act = getattr(of, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            began = time.thread_time()
            done = act(*arguments, **named)
            vars(self)[figure] += time.thread_time() - began
            return done

        setattr(of, name, counted)


def main() -> None:
    side, model, sequences = sys.argv[1], sys.argv[2], int(sys.argv[3])
    timer = Timer()
    generate = {"ours": ours, "bare": bare, "every_step": every_step}[side](model, sequences, timer)
    print(json.dumps({"ready": side}), flush=True)
    for _ in sys.stdin:
        timer.model = timer.scheduler = 0.0
        began, cpu = time.perf_counter(), time.process_time()
        tokens = generate()
        spent, cpu = time.perf_counter() - began, time.process_time() - cpu
        each = {"model": timer.model, "scheduler": timer.scheduler, "outputs": cpu - timer.model - timer.scheduler}
        figures = {name: seconds / tokens * 1e6 for name, seconds in each.items()}
        print(json.dumps({"rate": tokens / spent} | figures), flush=True)


if __name__ == "__main__":
    main()
