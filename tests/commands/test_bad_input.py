"""Bad input is one line that says what to do, exit code 2, within two seconds: for `check`, and so for `train`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.conftest import Command

OF_ITS_START = 0.5
"""What test_cli.py leaves a command for its imports, which a fork does not make."""


def refusal(rlhf: Command, *arguments: object) -> str:
    """The one line with which `rlhf check` refuses."""
    ended = rlhf("check", *arguments)
    assert ended.returncode == 2, ended.stderr
    assert ended.processor_seconds < 2 - OF_ITS_START
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
    assert ended.stdout == ""
    return ended.stderr


def test_an_unknown_key_names_the_nearest_one(rlhf: Command, recipe: Path):
    assert "did you mean 'trainer.updates'" in refusal(rlhf, recipe, "trainer.updatse=3")


def test_a_wrong_type_names_the_key_and_the_value(rlhf: Command, recipe: Path):
    error = refusal(rlhf, recipe, "trainer.updates=many")
    assert "trainer.updates" in error
    assert "'many'" in error


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("model.gradient_checkpointing=often", "error: model.gradient_checkpointing: Input should be"),
        ("trainer.weight_sync.bucket_megabytes=0", "bucket_megabytes: give megabytes above 0, or auto (got 0)"),
        ("trainer.weight_sync.bucket_megabytes=big", "bucket_megabytes: give megabytes above 0, or auto (got 'big')"),
        ("rollout.tensor_parallel_size=3", "rollout.tensor_parallel_size is 3, but the model has"),
    ],
)
def test_a_value_of_no_alternative_names_the_key_alone(rlhf: Command, recipe: Path, override: str, told: str):
    assert told in refusal(rlhf, recipe, override)


def test_an_override_without_a_value_shows_how_to_write_one(rlhf: Command, recipe: Path):
    assert "key=value" in refusal(rlhf, recipe, "trainer.updates")


def test_a_missing_recipe_names_its_neighbour(rlhf: Command, recipe: Path):
    assert f"did you mean {recipe}" in refusal(rlhf, recipe.with_name("smal.yaml"))


def test_more_cores_than_there_are_says_which_keys_to_lower(rlhf: Command, recipe: Path):
    error = refusal(rlhf, recipe, "rollout.cpus_per_engine=4000")
    assert "4000 cores" in error
    assert "cpus_per_engine" in error


def test_more_nodes_than_this_machine_is_need_the_address_of_a_cluster(rlhf: Command, recipe: Path):
    error = refusal(rlhf, recipe, "cluster.nodes=2")
    assert "cluster.nodes is 2" in error
    assert "cluster.address" in error


def test_a_missing_data_file_is_named(rlhf: Command, recipe: Path):
    assert "absent.jsonl" in refusal(rlhf, recipe, "data.train.path=./absent.jsonl")


def test_an_empty_data_file_is_named(rlhf: Command, recipe: Path, rows: Path):
    rows.write_text("")
    assert "empty" in refusal(rlhf, recipe)


def test_a_row_without_the_needed_column_names_those_it_has(rlhf: Command, recipe: Path):
    error = refusal(rlhf, recipe, "data.train.prompt_column=problem")
    assert "'problem'" in error
    assert "'question'" in error


def test_held_out_data_is_checked_too(rlhf: Command, recipe: Path):
    assert "absent.jsonl" in refusal(rlhf, recipe, "data.eval.path=./absent.jsonl")


@pytest.mark.parametrize("key", ["sampling.max_tokens", "rollout.max_context_tokens"])
def test_more_tokens_than_a_tiny_model_takes_names_both_numbers(rlhf: Command, recipe: Path, key: str):
    error = refusal(rlhf, recipe, f"{key}=500")
    assert key in error
    assert "128" in error


@pytest.mark.parametrize("key", ["sampling.max_tokens", "rollout.max_context_tokens"])
def test_more_tokens_than_a_model_folder_takes_names_both_numbers(
    rlhf: Command, recipe: Path, model_folder: Path, key: str
):
    error = refusal(rlhf, recipe, "model.tiny=null", f"model.path={model_folder}", f"{key}=500")
    assert key in error
    assert "64" in error


def test_a_folder_that_is_no_model_is_refused(rlhf: Command, recipe: Path, tmp_path: Path):
    assert "no config.json" in refusal(rlhf, recipe, "model.tiny=null", f"model.path={tmp_path}")


def test_a_checkpoint_given_for_a_model_points_to_the_model_inside(rlhf: Command, recipe: Path, tmp_path: Path):
    inside = tmp_path / "checkpoint" / "huggingface"
    inside.mkdir(parents=True)
    (inside / "config.json").write_text("{}")
    error = refusal(rlhf, recipe, "model.tiny=null", f"model.path={tmp_path / 'checkpoint'}")
    assert f"did you mean {inside}" in error


def test_held_out_tasks_that_are_made_as_those_of_training_are_refused(rlhf: Command, recipe: Path):
    name = "recipes.tasks.sorting:tasks"
    error = refusal(rlhf, recipe, "data.train.path=null", f"data.train.tasks={name}", f"data.eval.tasks={name}")
    assert f"data.eval.arguments are those of data.train, so {name} makes the same tasks" in error


def test_an_argument_that_a_function_of_tasks_does_not_take_is_told_with_those_that_it_takes(
    rlhf: Command, recipe: Path
):
    own = ("data.train.path=null", "data.train.tasks=recipes.tasks.sorting:tasks", "data.train.arguments={row: 3}")
    error = refusal(rlhf, recipe, *own)
    assert "data.train.tasks is recipes.tasks.sorting:tasks" in error
    assert "'row'; it takes digits, rows, split, seed" in error


def test_a_negative_seed_is_refused(rlhf: Command, recipe: Path):
    assert "seed" in refusal(rlhf, recipe, "seed=-1")


@pytest.mark.parametrize(
    "override", ["trainer.weight_sync.backend=nccl", "trainer.weight_sync.backend=ipc", "model.dtype=float16"]
)
def test_what_needs_a_gpu_is_refused_on_a_cpu(rlhf: Command, recipe: Path, override: str):
    key, _, value = override.partition("=")
    error = refusal(rlhf, recipe, override)
    assert key in error
    assert value in error


def test_a_logger_that_is_not_installed_is_named(rlhf: Command, recipe: Path):
    assert "wandb, which is not installed" in refusal(rlhf, recipe, "run.loggers=[wandb]")


@pytest.mark.parametrize(
    "arguments", [[], ["check"], ["train"], ["eval", "checkpoint"], ["generate", "a"], ["export", "a"], ["nonsense"]]
)
def test_wrong_arguments_are_exit_code_two(rlhf: Command, arguments: list[str]):
    assert rlhf(*arguments).returncode == 2


def test_a_recipe_of_pairs_is_not_evaluated_by_playing(rlhf: Command):
    ended = rlhf("eval", "checkpoint", "--recipe", Path(__file__).parents[2] / "recipes" / "dpo.yaml")
    assert ended.returncode == 2
    assert "kind: preference, whose held-out pairs are judged while it trains" in ended.stderr
