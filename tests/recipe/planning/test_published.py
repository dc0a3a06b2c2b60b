"""Plans against what others have published: cards that somebody measured, and DeepSpeed's own estimates.

| case | source |
|---|---|
| t5-3b, T0_3B, t5-large | DeepSpeed, docs/code-docs/source/memory.rst; transformers, docs "DeepSpeed", T0_3B |
| Llama 3 8B, 1 and 2 A100 | vLLM pull request 10511, "Some sanity checks", logs of 2024-12-13 |
| Llama 2 7B, 1 A100 | vLLM pull request 2031, 7,351 blocks of 16 tokens |
| R1-Distill-Qwen-14B, 2 RTX 4090 | vLLM issue 13061, log of 2025-02-11 |
| KV cache of Llama 3.1 | Hugging Face, blog "Llama 3.1", table of 16-bit caches |
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlhf.recipe.model_configs import known_models
from rlhf.recipe.planning.layout import EngineLayout, LearnerLayout
from rlhf.recipe.planning.machines import CARDS, GIB
from rlhf.recipe.planning.meta_model import shape_of
from rlhf.recipe.planning.processes import bytes_at, cache_tokens, engine_parts, least_state

LLAMA_2_7B = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
}  # fmt: skip


def rank(**values: object) -> LearnerLayout:
    plain = LearnerLayout(
        device="cuda", ranks=8, stage=3, width=2, tokens=1, checkpointing=1, sequence_parallel=1,
        offload_optimizer=False, offload_parameters=False, reference=False, critic=False, average=False, lora=0,
        bucket_bytes=0, beside_engines=False, zero={},
    )  # fmt: skip
    return replace(plain, **values)  # type: ignore[arg-type]


def engine(**values: object) -> EngineLayout:
    plain = EngineLayout(
        role="engine", device="cuda", engines=1, parallel=1, width=2, sequences=256, batched_tokens=8192,
        context=None, utilisation=0.9, cache_bytes=0, bucket_bytes=0,
    )  # fmt: skip
    return replace(plain, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parameters", "layout", "published"),
    [
        pytest.param(2851e6, rank(), 6.10, id="t5-3b, ZeRO-3, 8 GPUs"),
        pytest.param(2851e6, rank(offload_optimizer=True), 0.79, id="t5-3b, ZeRO-3, optimizer offloaded"),
        pytest.param(2783e6, rank(ranks=1), 46.91, id="T0_3B, ZeRO-3, 1 GPU"),
        pytest.param(737.67e6, rank(ranks=4), 3291 / 1024, id="t5-large, ZeRO-3, 4 GPUs"),
    ],
)
def test_model_states_are_what_deepspeed_estimates(parameters: float, layout: LearnerLayout, published: float) -> None:
    assert least_state(round(parameters), layout) / GIB == pytest.approx(published, rel=0.2)


def test_zero_2_needs_less_than_deepspeed_estimates_by_the_16_bit_gradients_that_are_reduced_as_they_come() -> None:
    """DeepSpeed's formula, 4 P + 16 P / N, has whole gradients in 16 bits; the code reduces them bucket by bucket."""
    parameters = round(2851e6)
    planned = least_state(parameters, rank(stage=2))
    assert (planned + 2 * parameters) / GIB == pytest.approx(15.93, rel=0.02)


@pytest.mark.parametrize(
    ("values", "layout", "card", "published"),
    [
        pytest.param(known_models()["meta-llama/Llama-3.1-8B-Instruct"], engine(), "A100", 53.29, id="Llama 3 8B"),
        pytest.param(
            known_models()["meta-llama/Llama-3.1-8B-Instruct"], engine(parallel=2), "A100",
            71.29 - 7.48 - 3.58 - 1.26, id="Llama 3 8B, 2 GPUs",
        ),
        pytest.param(
            LLAMA_2_7B, engine(batched_tokens=4096), "A100", 7351 * 16 * 2 * 32 * 4096 * 2 / GIB, id="Llama 2 7B"
        ),
        pytest.param(
            known_models()["Qwen/Qwen2.5-14B-Instruct"], engine(parallel=2, utilisation=0.98, batched_tokens=2048),
            "RTX4090", 8.69, id="R1-Distill-Qwen-14B, 2 GPUs",
        ),
    ],
)  # fmt: skip
def test_the_kv_cache_is_what_vllm_found_on_real_cards(
    values: dict[str, object], layout: EngineLayout, card: str, published: float
) -> None:
    parts = engine_parts(shape_of("a model", values), layout, CARDS[card])
    cache = bytes_at([part for part in parts if part.what == "KV cache"], "device")
    assert cache / GIB == pytest.approx(published, rel=0.2)


@pytest.mark.parametrize(
    ("name", "published"), [("meta-llama/Llama-3.1-8B-Instruct", 15.62), ("meta-llama/Llama-3.3-70B-Instruct", 39.06)]
)
def test_a_cache_of_128k_tokens_has_the_published_size(name: str, published: float) -> None:
    shape = shape_of(name, known_models()[name])
    assert shape.cache_elements() * 2 * 128_000 / GIB == pytest.approx(published, rel=0.01)
    parts = engine_parts(shape, engine(parallel=4), CARDS["H100"])
    held_bytes = sum(part.bytes for part in parts if part.what == "KV cache")
    assert cache_tokens(shape, engine(parallel=4), parts) == held_bytes // (shape.cache_elements(4) * 2)
