"""Bad input is one line that says what to do, exit code 2, within two seconds: for `check`, and so for `train`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.apps.cli.conftest import Command

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


SORTING = "recipes.tasks.sorting:tasks"
MADE = ("data.train.path=null", f"data.train.tasks={SORTING}")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("trainer.updatse=3",), ("did you mean 'trainer.updates'",)),
        (("trainer.updates=many",), ("trainer.updates", "'many'")),
        (("trainer.updates",), ("key=value",)),
        (("seed=-1",), ("seed",)),
        (("model.gradient_checkpointing=often",), ("error: model.gradient_checkpointing: Input should be",)),
        (("trainer.weight_sync.bucket_megabytes=0",), ("bucket_megabytes: give megabytes above 0, or auto (got 0)",)),
        (
            ("trainer.weight_sync.bucket_megabytes=big",),
            ("bucket_megabytes: give megabytes above 0, or auto (got 'big",),
        ),
        (("rollout.tensor_parallel_size=3",), ("rollout.tensor_parallel_size is 3, but the model has",)),
        (("data.train.path=./absent.jsonl",), ("absent.jsonl",)),
        (("data.eval.path=./absent.jsonl",), ("absent.jsonl",)),
        (("data.train.prompt_column=problem",), ("'problem'", "'question'")),
        (("sampling.max_tokens=500",), ("sampling.max_tokens", "128")),
        (("rollout.max_context_tokens=500",), ("rollout.max_context_tokens", "128")),
        ((*MADE, f"data.eval.tasks={SORTING}"), (f"are those of data.train, so {SORTING} makes the same tasks",)),
        ((*MADE, "data.train.arguments={row: 3}"), (SORTING, "'row'; it takes digits, rows, split, seed")),
        (("trainer.weight_sync.backend=nccl",), ("trainer.weight_sync.backend", "nccl")),
        (("trainer.weight_sync.backend=ipc",), ("trainer.weight_sync.backend", "ipc")),
        (("model.dtype=float16",), ("model.dtype", "float16")),
        (("run.loggers=[wandb]",), ("wandb, which is not installed",)),
        (("run.loggers=[comet]",), ("comet, which is not installed: pip install comet_ml",)),
        (("run.loggers=[mlfow]",), ("'mlfow' is not one of tensorboard, wandb, mlflow",)),
        (("run.loggers=['absent:Mine']",), ("run.loggers.0 is absent:Mine", "no module absent")),
        (("run.prometheus={port: 0, host: 0.0.0.0}",), ("run.prometheus: host 0.0.0.0", "set token_env")),
        (("run.prometheus.token_env=ABSENT_TOKEN",), ("ABSENT_TOKEN",)),
        (("run.otlp=localhost:4317",), ("run.otlp", "localhost:4317")),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(
    rlhf: Command, recipe: Path, overrides: tuple[str, ...], told: tuple[str, ...]
):
    error = refusal(rlhf, recipe, *overrides)
    assert [words for words in told if words not in error] == []


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("rollout.cpus_per_engine=4000", ("4000 cores", "cpus_per_engine")),
        ("cluster.nodes=2", ("cluster.nodes is 2", "cluster.address")),
    ],
)
def test_what_this_machine_lacks_is_told_after_all_that_is_right(
    rlhf: Command, recipe: Path, override: str, told: tuple[str, ...]
):
    ended = rlhf("check", recipe, override)
    assert ended.returncode == 2
    assert ended.stdout.startswith("recipe")
    assert [words for words in told if words not in ended.stderr] == []


def test_a_missing_recipe_names_its_neighbour(rlhf: Command, recipe: Path):
    assert f"did you mean {recipe}" in refusal(rlhf, recipe.with_name("smal.yaml"))


def test_a_folder_without_a_recipe_and_the_folder_that_one_is_in_are_told_apart(rlhf: Command, tmp_path: Path):
    (tmp_path / "recipe.yaml").write_text("seed: [1\nb: 2\n")
    (tmp_path / "empty").mkdir()
    assert "empty is a folder; it has no recipe" in rlhf("train", "empty").stderr
    assert "you are in this folder: give . " in rlhf("train", tmp_path.name).stderr
    assert rlhf("train", ".").stderr == (
        "error: recipe.yaml, line 2, column 2: not valid YAML: expected ',' or ']', but got ':'\n"
    )


def test_an_empty_data_file_is_named(rlhf: Command, recipe: Path, rows: Path):
    rows.write_text("")
    assert "empty" in refusal(rlhf, recipe)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            "return float(response == row['anser'])",
            "the reply '1': KeyError: 'anser' (at mine.py:2); if meant, set reward.",
        ),
        ("return str(response == row['answer'])", "the reply '1': it returned 'True'"),
        ("if response == row['answer']: return 1.0", "an empty reply: it returned None"),
        ("return 1e300", "the reply '1': it returned 1e+300, which is infinite in float32"),
    ],
)
def test_a_reward_that_gives_no_number_is_told_by_the_first_row(
    rlhf: Command, recipe: Path, rows: Path, body: str, told: str
):
    recipe.with_name("mine.py").write_text(f"def reward(response, row):\n    {body}\n")
    error = refusal(rlhf, recipe, "reward={kind: function, function: mine:reward}")
    assert error.startswith(f"error: {rows}, row 1: mine:reward returns no number for {told}")


def test_a_reward_may_raise_for_a_reply_without_an_answer(rlhf: Command, recipe: Path):
    own = (recipe, "reward={kind: function, function: mine:reward}")
    recipe.with_name("mine.py").write_text("def reward(response, row):\n    return int(response)\n")
    assert rlhf("check", *own).returncode == 0
    recipe.with_name("mine.py").write_text("def reward(response, row):\n    raise ValueError(response)\n")
    assert rlhf("check", *own, "reward.on_scorer_failure=unscored").returncode == 0


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


@pytest.mark.parametrize(
    "arguments", [[], ["check"], ["train"], ["eval", "checkpoint"], ["generate", "a"], ["export", "a"], ["nonsense"]]
)
def test_wrong_arguments_are_exit_code_two(rlhf: Command, arguments: list[str]):
    assert rlhf(*arguments).returncode == 2


def test_a_recipe_of_pairs_is_not_evaluated_by_playing(rlhf: Command):
    ended = rlhf("eval", "checkpoint", "--recipe", Path(__file__).parents[3] / "recipes" / "dpo.yaml")
    assert ended.returncode == 2
    assert "kind: preference, which evaluates held-out pairs while it trains" in ended.stderr
