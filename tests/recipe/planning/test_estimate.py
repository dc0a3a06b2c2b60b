"""Plans: where a run goes, what it needs, and what to change when it does not fit."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf.apps.cli.plan import plan_lines, planned, run_plan
from rlhf.errors import ConfigError
from rlhf.recipe.loading import load_recipe, recipe_from
from rlhf.recipe.planning.estimate import NO_ACTIVATIONS, Estimate, shortages
from rlhf.recipe.planning.machines import CARDS, GIB, NCCL_BUFFERS, Machine, card_named, here, machine_of
from rlhf.recipe.planning.processes import bytes_at, engine_phases, learner_phases, peak
from rlhf.trainer.config import GPU_BUCKET
from tests.recipe.planning.gpu_recipes import plan_of, recipe_file

LLAMA = recipe_file("llama_70b_16_nodes")
ONE_NODE = ("trainer.deepspeed.ranks=4", "rollout.engines=1")


def test_seventy_billion_weights_on_eight_cards_are_refused_with_the_mend() -> None:
    found, problem = planned(load_recipe(LLAMA, ONE_NODE).recipe, machine_of("8x80GB", 1))
    (short,) = found.shortages
    assert short.where == "a card with a rank"
    assert short.needed > 4 * 80 * GIB  # 18 bytes for each weight, over 4 ranks
    none, *_, smallest = problem.splitlines()
    assert none == "no settings of this recipe fit this machine"
    nodes, cards, size, host, changes = re.fullmatch(SMALLEST, smallest).groups()  # type: ignore[union-attr]
    there = replace(machine_of(f"{cards}x{size}", int(nodes or 1)), host_memory=int(host) * GIB)
    assert mended(LLAMA, ONE_NODE, changes, there).fits


SMALLEST = r"the smallest machine that fits is (?:(\d+) nodes of )?(\d+) x (\w+) and (\d+) GiB host memory: (.+)"


def mended(recipe: Path, overrides: Sequence[str], changes: str, machine: Machine) -> Estimate:
    """The estimate with the overrides that a plan names, as a user types them."""
    found, _ = planned(load_recipe(recipe, (*overrides, *changes.split())).recipe, machine)
    return found


WIDE = ("trainer.tokens_per_microbatch=65536",)
QWEN = "model.path=Qwen/Qwen2.5-{}-Instruct"


@pytest.mark.parametrize(
    ("recipe", "overrides", "card", "named"),
    [
        pytest.param("math_7b_one_node", WIDE, "8xL40S", {"trainer.tokens_per_microbatch"}, id="micro-batch"),
        pytest.param("gsm8k_one_gpu", [QWEN.format("1.5B")], "24GB",
                     {"trainer.deepspeed.offload_optimizer"}, id="state to the host"),
        pytest.param("lora_one_gpu", [], "40GB", {"cluster.placement", "rollout.gpu_memory_utilization"}, id="turns"),
        pytest.param("lora_one_gpu", [QWEN.format("32B")], "1x145GB", {"cluster.placement"}, id="turns, 32B"),
        pytest.param("gsm8k_grpo", [], "24GB", {"cluster.placement", "trainer.max_staleness"}, id="one card for two"),
        pytest.param("gsm8k_grpo", [QWEN.format("7B")], "8xH100", {"trainer.deepspeed.ranks"}, id="idle cards"),
        pytest.param("gsm8k_one_gpu", ["rollout.gpu_memory_utilization=0.1"], "24GB",
                     {"rollout.gpu_memory_utilization"}, id="no room for one sequence"),
    ],
)  # fmt: skip
def test_what_a_card_cannot_hold_fits_by_the_overrides_that_are_named(
    recipe: str, overrides: Sequence[str], card: str, named: set[str]
) -> None:
    file, machine = recipe_file(recipe), machine_of(card, 1)
    found, problem = planned(load_recipe(file, overrides).recipe, machine)
    assert not found.fits
    assert named <= {change.partition("=")[0] for change in problem.split()}
    assert mended(file, overrides, problem, machine).fits


@pytest.mark.parametrize(
    ("recipe", "card", "smallest"),
    [
        # 16 bytes of state for each of 7.6e9 weights wait in host memory: 114 GiB, and 14 of weights beside.
        ("gsm8k_one_gpu", "80GB", "1 x 80GB and 256 GiB host memory"),
        ("gsm8k_one_gpu", "24GB", "2 x 24GB and 256 GiB host memory"),
        ("lora_one_gpu", "24GB", "1 x 40GB and 128 GiB host memory"),
    ],
)
def test_where_no_setting_fits_the_smallest_machine_that_does_is_named(recipe: str, card: str, smallest: str) -> None:
    overrides = [QWEN.format("7B")]
    machine = machine_of(card, 1)
    _, problem = planned(load_recipe(recipe_file(recipe), overrides).recipe, machine)
    none, *other = problem.splitlines()
    assert none == "no settings of this recipe fit this machine"
    (said,) = (line for line in other if line.startswith("the smallest"))
    assert smallest in said
    if recipe == "lora_one_gpu":
        assert "(QLoRA)" in other[-1]
    if card == "80GB":
        adapters = other[0].partition(": ")[2]
        assert adapters.startswith("model.lora.rank=32 ")
        assert mended(recipe_file(recipe), overrides, adapters, machine).fits


def test_gpus_are_checked_before_cores_and_a_node_is_described_by_options(capsys: pytest.CaptureFixture[str]) -> None:
    asks = ["trainer.deepspeed.cpus_per_rank=9"]
    assert run_plan(recipe_file("gsm8k_grpo"), asks, gpus="H100", cores=4, memory=200) == 1
    machine, lacking = (line for line in capsys.readouterr().out.splitlines() if line.startswith(("machine", "does")))
    assert machine == "machine    1 x H100 (79.1 GiB), 4 cores, 200 GiB host memory"
    assert "2 GPUs asked, this machine has 1" in lacking


def test_json_holds_bytes_by_phase_and_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plan(recipe_file("gsm8k_one_gpu"), gpus="H100", as_json=True) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["fits"] is True
    assert [(role["name"], role["count"]) for role in said["roles"]] == [("learner", 1), ("engine", 1)]
    training = {part["what"]: part["bytes"] for part in said["learner"]["forward and backward"]}
    assert training["weights"] == 2 * said["shape"]["parameters"]
    assert training["moments"] == 8 * said["shape"]["parameters"]


def test_a_run_on_a_cpu_is_planned_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plan(Path("recipes/quickstart.yaml")) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "it fits"


def test_a_colocated_rank_waits_in_host_memory_and_a_sleeping_engine_holds_no_cache() -> None:
    found, _ = plan_of("gsm8k_one_gpu")
    rank = learner_phases(found.shape, found.run.learner, NO_ACTIVATIONS, parked=True)
    context = bytes_at([part for part in rank["generate"] if part.what == "CUDA context"], "device")
    assert bytes_at(rank["generate"], "device") == context
    assert bytes_at(rank["generate"], "host") > 16 * found.shape.parameters * 0.8
    assert found.machine.card
    engine = engine_phases(found.shape, replace(found.run.engines[0], utilisation=0.8), found.machine.card, asleep=True)
    assert "KV cache" not in {part.what for part in engine["forward and backward"]}
    together = max(bytes_at(rank[phase], "device") + bytes_at(engine[phase], "device") for phase in rank)
    assert together < peak(rank, "device") + peak(engine, "device")


def test_a_weight_sync_adds_buffers_an_unfinished_layer_and_a_communicator_to_an_engine_on_a_gpu() -> None:
    by_nccl, by_ipc, by_gloo = (
        {part.what: part.bytes for part in found.engines[0]["weight sync"] if part not in found.engines[0]["generate"]}
        for found, _ in (
            plan_of("moe_30b_a3b"),
            plan_of("gsm8k_one_gpu"),
            plan_of("moe_30b_a3b", "trainer.weight_sync.backend=gloo"),
        )
    )
    experts, attention, small = 128 * 3 * 2048 * 768, 2 * 2048 * (4096 + 512), 128 * 2048 + 2 * 2048 + 2 * 128
    embedding, bucket = 151_936 * 2048 * 2, GPU_BUCKET
    assert by_nccl == {
        "unfinished layer": 2 * (experts + attention + small),
        "buckets of weight syncs": max(embedding, bucket) + 2 * bucket,
        "NCCL of weight syncs": NCCL_BUFFERS // 2,
    }
    assert set(by_ipc) == {"unfinished layer"}, "the buffers are the rank's"
    assert by_gloo == {}


def test_holes_of_a_ranks_allocator_are_left_on_a_card_that_it_has_together_with_an_engine() -> None:
    recipe, card = recipe_file("gsm8k_one_gpu"), machine_of("1x80GB", 1)
    found, _ = planned(load_recipe(recipe, ("rollout.gpu_memory_utilization=0.96",)).recipe, card)
    (short,) = found.shortages
    assert short.where == "a card with a rank and an engine"
    assert card.card
    assert short.available == round(0.95 * card.card.memory)


@pytest.mark.parametrize("text", ["8", "8xNoCard", "GPU"])
def test_a_card_that_nobody_knows_is_refused_with_those_that_are_known(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--gpus {text} is not a known card.*H100"):
        machine_of(text, 1)


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10G", None),
        ("NVIDIA A1000", None),
    ],
)
def test_a_card_has_the_figures_of_its_name_and_an_unknown_one_has_none(name: str, card: str | None) -> None:
    assert card_named(name) == (CARDS[card] if card else None)


def test_every_second_layer_computed_again_is_between_none_and_all() -> None:
    none, half, every = (
        sum(part.bytes for part in found.learner["forward and backward"] if part.what == "activations")
        for found, _ in (
            plan_of("math_7b_one_node", f"model.gradient_checkpointing={n}") for n in ("false", "2", "true")
        )
    )
    assert 0.4 * none < half < 0.7 * none
    assert every < 0.5 * half


@pytest.mark.parametrize(("kind", "texts"), [("sft", 1), ("preference", 2), ("reward_model", 2)])
def test_an_update_from_examples_has_one_text_of_each_or_two(kind: str, texts: int) -> None:
    columns = {"response_column": "a"} if texts == 1 else {"chosen_column": "a", "rejected_column": "b"}
    sections = {"data": {"train": {"path": "rows.jsonl"} | columns}, "trainer": {"groups_per_update": 50}}
    lines = plan_lines(*planned(recipe_from({"kind": kind, "model": {"tiny": {}}, **sections}).recipe, here()))
    assert [line for line in lines if line.startswith(f"an update  {50 * texts} samples of")]
    assert "\n\n\n" not in "\n".join(lines)


def test_engines_of_several_sizes_are_planned_each_by_its_own() -> None:
    """The 7B recipe with two engines of 1 and one of 2, which has half of the weights on each of its GPUs."""
    found, problem = plan_of("math_7b_one_node", "rollout.engines=3", "rollout.tensor_parallel_size=[1,1,2]")
    assert problem == ""
    assert [(one.role, one.engines, one.parallel) for one in found.run.engines] == [
        ("engine-tp1", 2, 1), ("engine-tp2", 1, 2)
    ]  # fmt: skip
    one, two = (sum(p.bytes for p in phases["generate"] if p.what == "weights") for phases in found.engines)
    assert one == 2 * two
    assert found.cache_tokens[1] > 2 * found.cache_tokens[0]
    lines = plan_lines(found, problem)
    assert [line.split(":")[0] for line in lines if "tokens an engine" in line] == [
        f"KV cache     {tokens:,} tokens an engine of {size}"
        for size, tokens in zip((1, 2), found.cache_tokens, strict=True)
    ]


def test_every_process_of_an_engine_of_a_larger_size_takes_host_memory() -> None:
    found, _ = plan_of("math_7b_one_node", "rollout.engines=3", "rollout.tensor_parallel_size=[1,1,2]")
    libraries = sum(part.bytes for part in found.engines[0]["generate"] if part.place == "host")
    rank = max(sum(part.bytes for part in parts if part.place == "host") for parts in found.learner.values())
    small = replace(found.machine, host_memory=4 * rank + 4 * libraries - 1)
    (short,) = shortages(found.shape, found.run, small, found.roles, found.learner, found.engines)
    assert short.needed == 4 * rank + 4 * libraries


SEVEN = {
    "model": {"path": "Qwen/Qwen2.5-7B-Instruct", "dtype": "bfloat16"},
    "rollout": {"engines": 4, "gpus_per_engine": 1, "gpu_memory_utilization": 0.9},
    "trainer": {"deepspeed": {"ranks": 4, "gpus_per_rank": 1, "zero_stage": 3}},
}
TASKS = {"data": {"train": {"path": "rows.jsonl"}}}
SEEDS = {"data": {"train": {"seeds": 8}}, "reward": {"kind": "environment"}}
PAIRS = {"kind": "preference", "data": {"train": {"path": "a", "chosen_column": "b", "rejected_column": "c"}}}


def game(**more: int) -> dict[str, object]:
    return SEEDS | {"environment": {"environment": "a:B", "max_turns": 4, **more}}


@pytest.mark.parametrize(
    ("sections", "reply", "longest"),
    [
        (TASKS, 8192, 8704),
        (TASKS, 30000, 30512),
        (TASKS, 40000, 32768),
        (game(), 1024, 4 * 1536),
        (game(last_n=0), 1024, 1536),
        (game(last_n=2), 1024, 3 * 1536),
        (TASKS | {"reward": {"kind": "environment"}, "agent": {"program": "a:b"}}, 1024, 32768),
        (PAIRS, 8192, 512 + 2 * 8192),
    ],
)
def test_the_longest_row_is_planned_however_few_tokens_a_micro_batch_has(
    sections: dict[str, object], reply: int, longest: int
) -> None:
    """One of 8,704 tokens was planned as one of 4,096, and "fits"."""
    recipe = recipe_from({**SEVEN, **sections, "sampling": {"max_tokens": reply}}).recipe
    found, problem = planned(recipe, machine_of("8xH100", 1))
    assert (found.run.longest, found.run.learner.tokens) == (longest, max(longest, 4096))
    assert found.microbatch is not None
    assert found.fits == (found.microbatch >= longest)
    if longest == 8704:
        assert found.shortages[0].described.startswith("a card with a rank needs 92.0 GiB")
        assert problem == "model.gradient_checkpointing=true"


def test_ranks_that_share_rows_have_each_its_part_of_the_longest() -> None:
    four = ("trainer.tokens_per_microbatch=1024",)
    found, _ = plan_of("long_context_64k", *four)
    assert found.run.learner.tokens == (512 + 65_536) // 4
    assert plan_of("long_context_64k")[0].run.learner.tokens == 16_896, "the recipe's own number is that of a rank"


def test_a_cache_without_room_for_one_sequence_does_not_fit_on_a_cpu_either() -> None:
    """vLLM does not start with one."""
    settings = {"model": {"path": "Qwen/Qwen2.5-0.5B-Instruct"}, **TASKS}
    found, problem = planned(recipe_from(settings).recipe, here())
    assert "KV cache (rollout.kv_cache_megabytes) with one sequence of its 32,768 tokens" in found.shortages[0].where
    larger = problem.partition(",")[0].split("=")
    settings["rollout"] = {larger[0].removeprefix("rollout."): int(larger[1])}
    assert "KV cache" not in str(planned(recipe_from(settings).recipe, here())[0].shortages)


@pytest.mark.parametrize("lora", [0, 8])
def test_the_start_check_copies_what_it_perturbs_to_host_memory(lora: int) -> None:
    found, _ = plan_of("lora_one_gpu")
    layout = replace(found.run.learner, lora=lora)
    parts = learner_phases(found.shape, layout, NO_ACTIVATIONS)["weight sync"]
    (copies,) = (part for part in parts if part.what == "copies for the start check")
    assert copies.place == "host"
    assert copies.bytes == (found.shape.adapter * lora if lora else found.shape.parameters) * layout.width


def test_the_check_of_the_longest_sequence_is_part_of_the_weight_sync() -> None:
    (short, _), (long, _) = plan_of("gsm8k_one_gpu"), plan_of("gsm8k_one_gpu", "sampling.max_tokens=16384")
    longer, shorter = (bytes_at(found.learner["weight sync"], "device") for found in (long, short))
    assert longer > shorter + 10**9 / 2
