"""Where a run goes that does not say it: on the GPUs of its machine, as many as fit; what a recipe says wins."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlhf.apps.cli.check import run_check
from rlhf.apps.cli.init import run_init
from rlhf.apps.cli.plan import planned, run_plan
from rlhf.cluster.roles import Resources
from rlhf.config import flatten
from rlhf.engines.vllm import environment
from rlhf.errors import ConfigError, PlacementError
from rlhf.recipe import preflight
from rlhf.recipe.loading import LoadedRecipe, load_recipe, recipe_from
from rlhf.recipe.placement import ORIGIN, PlacementTarget, describe_placement
from rlhf.recipe.planning import machines
from rlhf.recipe.planning.estimating import estimator
from rlhf.recipe.planning.layout import PROMPT_TOKENS
from rlhf.recipe.planning.machines import machine_of
from rlhf.recipe.resolve import located
from rlhf.recipe.workers import engine_device, learner_device
from tests.end_to_end.running import QUICKSTART, ROOT
from tests.nvml import GIB, FakeGpu, FakeNvml, install_nvml

QWEN = "Qwen/Qwen2.5-{}-Instruct"
LINES = (ROOT / "docs" / "placement.md").read_text().splitlines()
TABLE = [line for line in LINES if line.startswith(("| Qwen2.5-", "| Llama-"))]
H100S = [FakeGpu(f"GPU-{index}", name="NVIDIA H100 80GB HBM3") for index in range(8)]
SMALL = FakeGpu("GPU-1", name="NVIDIA GeForce RTX 4090", total=24 * GIB, free=23 * GIB)
FULL = replace(H100S[0], free=GIB, processes=(os.getpid(),))
Have = Callable[..., None]


@pytest.fixture
def have(monkeypatch: pytest.MonkeyPatch) -> Have:
    """Give this machine GPUs, with vLLM for them, and the cores and the memory of such a machine."""

    def simulate(*gpus: FakeGpu) -> None:
        install_nvml(monkeypatch, FakeNvml(list(gpus)))
        monkeypatch.setattr(environment, "version", {"vllm": "0.32.0+cu130"}.__getitem__)
        monkeypatch.setattr(machines.psutil, "virtual_memory", lambda: SimpleNamespace(total=len(gpus) * 128 * GIB))
        for module in (machines, preflight):
            found = Resources(node="this machine", cpus=12.0 * len(gpus), gpus=float(len(gpus)))
            monkeypatch.setattr(module, "this_machine", lambda found=found: found)

    return simulate


def recipe(name: str = QWEN.format("7B"), /, **sections: object) -> LoadedRecipe:
    given = {"model": {"path": name}, "data": {"train": {"path": "rows.jsonl"}}, "sampling": {"max_tokens": 2048}}
    return recipe_from(given | sections)


def on(gpus: str, loaded: LoadedRecipe, nodes: int = 1) -> LoadedRecipe:
    return located(loaded, target=PlacementTarget(machine=machine_of(gpus, nodes), must_fit=False))


def values(loaded: LoadedRecipe, *keys: str) -> tuple[object, ...]:
    held = dict(flatten(loaded.recipe.model_dump()))
    return tuple(held[key] for key in keys)


def row(model: str, gpus: str, nodes: int) -> str:
    """A row of the table: what is chosen, and whether the plan accepts it."""
    loaded = on(gpus, recipe(model), nodes)
    fits = estimator(loaded.recipe, None, PROMPT_TOKENS)(loaded.recipe, machine_of(gpus, nodes)).fits
    rollout, deepspeed = loaded.recipe.rollout, loaded.recipe.trainer.deepspeed
    cells = [
        model.partition("/")[2].removesuffix("-Instruct"),
        f"{nodes} x {gpus}" if nodes > 1 else gpus,
        f"{deepspeed.ranks}, ZeRO {deepspeed.zero_stage}",
        f"{rollout.engines} of {rollout.tensor_parallel_size}",
        f"{rollout.gpu_memory_utilization:g}",
        ", ".join(
            ["recomputed"] * bool(loaded.recipe.model.gradient_checkpointing)
            + ["optimizer in host memory"] * (deepspeed.offload_optimizer == "cpu")
        ) or "-",
    ]  # fmt: skip
    return f"| {' | '.join(cells if fits else [*cells[:2], 'does not fit', '', '', ''])} |"


CELLS = [
    (model, gpus, nodes)
    for model in (*map(QWEN.format, ("0.5B", "7B", "32B")), "meta-llama/Llama-3.3-70B-Instruct")
    for gpus, nodes in (("1x24GB", 1), ("1xH100", 1), ("8xH100", 1), ("8xH100", 4))
]


@pytest.mark.parametrize(("place", "cell"), list(enumerate(CELLS)), ids=str)
def test_the_table_of_the_page_has_what_is_chosen(place: int, cell: tuple[str, str, int]) -> None:
    assert TABLE[place] == row(*cell)


@pytest.mark.parametrize(
    ("gpus", "uses", "chosen"),
    [
        ([SMALL], "uses 1 of 1", ["cluster.placement colocated", "rollout.engines 1", "model.dtype bfloat16"]),
        (H100S, "uses 8 of 8", ["cluster.placement colocated", "rollout.engines 8", "trainer.deepspeed.ranks 8"]),
        ([replace(H100S[0], free=40 * GIB)], "uses 1 of 1", ["rollout.gpu_memory_utilization 0.45"]),
    ],
    ids=["24 GB", "8 x H100", "half free"],
)
def test_the_quickstart_goes_where_the_machines_gpus_are_and_the_plan_accepts_it(
    have: Have, capsys: pytest.CaptureFixture[str], gpus: list[FakeGpu], uses: str, chosen: list[str]
) -> None:
    have(*gpus)
    assert run_check(QUICKSTART) == 0
    said = capsys.readouterr().out
    (line,) = (line for line in said.splitlines() if line.startswith(ORIGIN))
    assert uses in said
    assert all(f"{one}," in f"{line}," for one in chosen)
    assert run_plan(QUICKSTART) == 0
    planned_lines = capsys.readouterr().out.splitlines()
    assert planned_lines[0].split() == line.split()
    assert planned_lines[-1] == "it fits"


def test_a_full_card_is_named_with_who_holds_it(have: Have) -> None:
    have(*H100S[:3], replace(FULL, uuid="GPU-3"))
    with pytest.raises(
        PlacementError, match=rf"; GPU 3 \(NVIDIA H100.*\) has 2\.0 of 80\.0 GiB.*process {os.getpid()} \("
    ):
        located(load_recipe(QUICKSTART))


SHIPPED = [
    path
    for path in sorted((ROOT / "recipes").rglob("*.yaml"))
    if engine_device(found := load_recipe(path).recipe) == learner_device(found) == "cpu"
]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
@pytest.mark.parametrize("gpus", [[SMALL], H100S], ids=["24 GB", "8 x H100"])
def test_every_recipe_without_gpus_runs_on_those_of_the_machine(
    have: Have, path: Path, gpus: list[FakeGpu], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an empty folder, where `runs/…` may be a name of the hub: in the checkout a quickstart has made `runs`."""
    monkeypatch.chdir(tmp_path)
    have(*gpus)
    found = located(load_recipe(path)).recipe
    preflight.check_devices(found)
    preflight.check_placement(found)
    assert learner_device(found) == "cuda"
    assert not found.plays or engine_device(found) == "cuda"


@pytest.mark.parametrize("kind", ["agent", "environment", "preference", "reward"])
def test_a_new_project_runs_on_the_machines_gpus(have: Have, tmp_path: Path, kind: str) -> None:
    have(*H100S)
    run_init(tmp_path / "mine", kind)
    found = located(load_recipe(tmp_path / "mine" / "recipe.yaml")).recipe
    preflight.check_devices(found)
    preflight.check_placement(found)
    assert learner_device(found) == "cuda"


ASYNC = {"trainer": {"max_staleness": 1}}
PAIRS = {"kind": "preference", "data": {"train": {"path": "a", "chosen_column": "b", "rejected_column": "c"}}}
KEYS = ("cluster.placement", "trainer.deepspeed.ranks", "rollout.engines", "rollout.tensor_parallel_size")


@pytest.mark.parametrize(
    ("sections", "chosen"),
    [
        ({}, ("colocated", 8, 8, 1)),
        (ASYNC, ("separate", 4, 4, 1)),
        ({"cluster": {"placement": "separate"}}, ("separate", 4, 4, 1)),
        ({"rollout": {"engines": 2}}, ("colocated", 4, 2, 2)),  # 14 heads cannot be split over 4
        ({"rollout": {"tensor_parallel_size": 2}}, ("colocated", 8, 4, 2)),
        ({"trainer": {"deepspeed": {"ranks": 4}}}, ("colocated", 4, 4, 1)),
        (ASYNC | {"rollout": {"engines": 2}}, ("separate", 6, 2, 1)),
        ({"rollout": {"tensor_parallel_size": [1, 2]}}, ("separate", 5, 2, (1, 2))),
        ({"trainer": {"deepspeed": {"gpus_per_rank": 1}}}, ("colocated", 8, 8, 1)),
        ({"cluster": {"kind": "local"}}, ("colocated", 1, 1, 1)),
        (PAIRS, ("separate", 8, 1, 1)),
    ],
)
def test_what_a_recipe_says_wins_and_the_rest_follows(sections: dict[str, object], chosen: tuple[object, ...]) -> None:
    loaded = on("8xH100", recipe(QWEN.format("0.5B"), **sections))
    held = dict(flatten(loaded.recipe.model_dump()))
    assert tuple(held[key] for key in KEYS) == chosen
    assert held["trainer.deepspeed.gpus_per_rank"] == 1
    assert held["rollout.gpus_per_engine"] == bool(loaded.recipe.plays)


def test_one_card_is_shared_by_halves_where_the_learner_trains_on_older_samples() -> None:
    loaded = on("H100", recipe(QWEN.format("0.5B"), **ASYNC))
    assert values(loaded, "rollout.gpus_per_engine", "trainer.deepspeed.gpus_per_rank") == (0.5, 0.5)
    assert planned(loaded.recipe, machine_of("H100", 1))[0].fits


def test_workers_that_a_recipe_places_stay_and_only_their_precision_follows(have: Have) -> None:
    have(*H100S)
    gpus = ["rollout.gpus_per_engine=1", "trainer.deepspeed.gpus_per_rank=1"]
    assert describe_placement(located(load_recipe(QUICKSTART, gpus))) == [(ORIGIN, "model.dtype bfloat16")]
    assert describe_placement(located(load_recipe(QUICKSTART, [*gpus, "model.dtype=float32"]))) == []
    none = located(load_recipe(QUICKSTART, ["rollout.gpus_per_engine=0"])).recipe
    with pytest.raises(ConfigError, match="gpus_per_engine is 0, but the installed vLLM computes on GPUs only; give 1"):
        preflight.check_devices(none)


def test_defaults_of_16_bits_follow_from_the_chosen_precision() -> None:
    loaded = on("8xH100", recipe(model={"path": QWEN.format("7B"), "lora": {"rank": 8}}))
    assert loaded.recipe.trainer.proximal_logprobs == "recomputed"
    assert loaded.recipe.model.publishes_adapters
    assert on("8xH100", loaded) == loaded, "chosen once"


def test_nothing_changes_without_gpus_or_with_a_vllm_for_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    given = load_recipe(QUICKSTART)
    assert located(given).origins == given.origins
    install_nvml(monkeypatch, FakeNvml(H100S))
    assert located(given).origins == given.origins


def test_what_fits_nowhere_is_an_error_of_a_run_and_exit_code_1_of_a_plan(
    have: Have, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    have(SMALL)
    file = tmp_path / "mine.yaml"
    file.write_text(f"model: {{path: {QWEN.format('32B')}}}\ndata: {{train: {{path: rows.jsonl}}}}\n")
    with pytest.raises(PlacementError, match=r"no placement of Qwen/Qwen2\.5-32B-Instruct fits 1 x NVIDIA.* needs"):
        located(load_recipe(file))
    assert run_plan(file, gpus="1x24GB") == 1
    assert "what to do" in capsys.readouterr().out


def test_a_model_that_the_hub_does_not_give_is_placed_as_a_small_one(
    have: Have, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_network(*given: object) -> None:
        raise OSError

    monkeypatch.setattr("huggingface_hub.hf_hub_download", no_network)
    have(*H100S)
    assert located(recipe("somebody/model")).recipe.trainer.deepspeed.ranks == 8
    assert "the placement is that of a small model" in capsys.readouterr().err
