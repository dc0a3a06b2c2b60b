"""What a recipe passes to vLLM: names that it has, and none that the system decides."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from rlhf.engines.vllm.user_arguments import DECIDED, check_arguments, check_variables, vllm_arguments
from rlhf.errors import ConfigError
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.preflight import check_engines
from rlhf.recipe.schema import Recipe
from tests.small_tasks import sorting


def recipe(trainer: Mapping[str, object] = MappingProxyType({}), **rollout: object) -> Recipe:
    given = {"model": {"path": "a/b"}, "data": {"train": sorting()}, "rollout": rollout, "trainer": dict(trainer)}
    return recipe_from(given).recipe


@pytest.mark.parametrize(
    "given",
    [
        {"moe_backend": "triton", "num_gpu_blocks_override": 100},
        {"enforce_eager": True, "async_scheduling": False, "compilation_config": {"cudagraph_mode": "NONE"}},
        {"max_num_batched_tokens": 32768, "attention_backend": "FLASH_ATTN", "speculative_config": {"method": "ngram"}},
    ],
)
def test_arguments_of_vllm_pass(given: dict[str, object]) -> None:
    check_engines(recipe(vllm=given))


def test_an_argument_that_vllm_does_not_have_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(
        ConfigError, match=r"rollout\.vllm\.kv_cache_dtyp is not an argument .*did you mean 'kv_cache_dtype'"
    ):
        check_engines(recipe(vllm={"kv_cache_dtyp": "fp8"}))


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("max_model_len", "rollout.max_context_tokens"),
        ("logprobs_mode", "the whole distribution"),
        ("data_parallel_size_local", "rollout.engines"),
        ("enable_lora", "model.lora"),
        ("nnodes", "on one node"),
    ],
)
def test_an_argument_that_the_system_decides_is_refused_with_the_reason(name: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=rf"rollout\.vllm\.{name} is set by this library: .*{instead}"):
        check_engines(recipe(vllm={name: 1}))


def test_every_argument_that_the_system_decides_is_one_of_vllm() -> None:
    assert set(DECIDED) <= set(vllm_arguments())


def test_a_variable_is_refused_where_vllm_does_not_have_it_or_the_system_decides_it() -> None:
    check_variables(["VLLM_USE_V2_MODEL_RUNNER", "NCCL_DEBUG"], "rollout.env_vars")
    with pytest.raises(ConfigError, match="did you mean 'VLLM_USE_V2_MODEL_RUNNER'"):
        check_engines(recipe(env_vars={"VLLM_USE_V2_MODEL_RUNER": 0}))
    with pytest.raises(ConfigError, match="VLLM_ENABLE_V1_MULTIPROCESSING is set by this library"):
        check_engines(recipe(env_vars={"VLLM_ENABLE_V1_MULTIPROCESSING": 1}))


def test_names_are_asked_of_vllm_alone() -> None:
    check_arguments(["new"], "rollout.vllm", known=lambda: ["new"])
    with pytest.raises(ConfigError, match=r"not an argument of vLLM's engine$"):
        check_arguments(["new"], "rollout.vllm", known=list)


def test_a_prompt_in_parts_is_refused_on_a_cpu_alone() -> None:
    check_engines(recipe(vllm={"enable_chunked_prefill": True}, gpus_per_engine=1))
    with pytest.raises(ConfigError, match="a CPU's cannot; leave it out"):
        check_engines(recipe(vllm={"enable_chunked_prefill": True}))


CORRECTED = {"mismatch": "ignore", "proximal_logprobs": "recomputed", "weight_sync": {"tolerance": 0.5}}


@pytest.mark.parametrize("name", ["quantization", "kv_cache_dtype"])
@pytest.mark.parametrize("missing", CORRECTED)
def test_coarser_engines_need_their_mismatch_corrected(name: str, missing: str) -> None:
    check_engines(recipe(trainer=CORRECTED, vllm={name: "fp8"}))
    with pytest.raises(ConfigError, match=rf"rollout\.vllm\.{name} is fp8: .*mismatch: ignore"):
        recipe(trainer={key: value for key, value in CORRECTED.items() if key != missing}, vllm={name: "fp8"})
