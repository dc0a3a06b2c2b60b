"""Who may share GPUs with whom, and which workers and backends follow from it."""

from __future__ import annotations

import pytest

from rlhf.cluster.placement import bundles_of
from rlhf.engines.vllm import environment
from rlhf.errors import ConfigError
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.preflight import check_devices
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import learner_starts_first, playing_roles, roles_of, transfer_backend
from tests.end_to_end.running import QUICKSTART, ROOT

GPUS = ("rollout.gpus_per_engine=1", "trainer.deepspeed.gpus_per_rank=1")
PAIR = ("cluster.placement=colocated", "trainer.deepspeed.ranks=2", "rollout.engines=2")


def recipe(*overrides: str) -> Recipe:
    return load_recipe(QUICKSTART, overrides).recipe


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (
            (*PAIR, "trainer.max_staleness=1"),
            "trainer.max_staleness is 1, but with cluster.placement: colocated engines wait",
        ),
        ((*PAIR, "rollout.engines=1"), r"1 engine\(s\) of tensor_parallel_size 1 do not cover 2 rank\(s\)"),
        ((*PAIR, "rollout.tensor_parallel_size=[1, 2]"), "tensor_parallel_size lists several; give one"),
        ((*PAIR, "rollout.gpus_per_engine=1"), "must both be 1, or on a CPU both 0"),
        ((*PAIR, "rollout.gpus_per_engine=0.5", "trainer.deepspeed.gpus_per_rank=0.5"), "two of 2 ranks could share"),
        ((*PAIR, *GPUS, "trainer.weight_sync.backend=nccl"), "nccl, which refuses two members on one GPU"),
        (("trainer.deepspeed.gpus_per_rank=2",), "gpus_per_rank is 2, but a rank uses one GPU; give 1, and raise"),
    ],
)
def test_gpus_that_cannot_be_shared_so_are_refused_by_name(overrides: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        recipe(*overrides)


def test_a_kind_without_engines_cannot_share() -> None:
    with pytest.raises(ConfigError, match="placement is colocated, but kind: preference has no engines"):
        load_recipe(ROOT / "recipes" / "dpo.yaml", ("cluster.placement=colocated",))


@pytest.mark.parametrize(
    ("overrides", "backend", "first"),
    [
        ((), "gloo", False),
        (PAIR, "gloo", True),
        ((*PAIR, *GPUS), "ipc", True),
        (GPUS, "nccl", False),
        (("rollout.gpus_per_engine=0.5", "trainer.deepspeed.gpus_per_rank=0.5"), "ipc", True),
        (("rollout.gpus_per_engine=0.5", "trainer.deepspeed.gpus_per_rank=0.5", "rollout.engines=2"), "gloo", True),
        (("rollout.gpus_per_engine=0.25", "trainer.deepspeed.gpus_per_rank=0.5", "rollout.engines=2"), "gloo", True),
        (("rollout.gpus_per_engine=0.5", "trainer.deepspeed.gpus_per_rank=1", "rollout.engines=2"), "gloo", True),
    ],
)
def test_weights_travel_by_ipc_and_the_learner_starts_first_where_it_shares_its_gpu(
    overrides: tuple[str, ...], backend: str, first: bool
) -> None:
    made = recipe(*overrides)
    assert (transfer_backend(made), learner_starts_first(made)) == (backend, first)


def test_a_colocated_engine_has_a_bundle_with_its_ranks() -> None:
    sizes = ("trainer.deepspeed.ranks=4", "rollout.tensor_parallel_size=2")
    (bundle,) = bundles_of(roles_of(recipe(*PAIR, *GPUS, *sizes)))
    assert (bundle.count, bundle.each, bundle.guest and bundle.guest.name) == (2, 2, "engine")
    assert bundle.resources() == {"CPU": 2 * 0.5 + 2 * 0.5, "GPU": 2}


def test_an_evaluation_has_no_ranks_to_share_with() -> None:
    assert [role.shares_with for role in playing_roles(recipe(*PAIR, *GPUS))] == [""]


def test_engines_without_gpus_need_a_vllm_that_computes_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    check_devices(recipe())
    monkeypatch.setattr(environment, "version", {"vllm": "0.32.0+cu130"}.__getitem__)
    with pytest.raises(ConfigError, match="gpus_per_engine is 0, but the installed vLLM computes on GPUs only; give 1"):
        check_devices(recipe())
    check_devices(recipe(*GPUS))
    monkeypatch.setattr(environment, "version", {"vllm": "0.32.0+cpu"}.__getitem__)
    check_devices(recipe())
