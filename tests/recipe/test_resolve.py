"""A run folder in a recipe stands for the model of its newest checkpoint; every other name stays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rlhf.durable import synced
from rlhf.errors import CheckpointError, ConfigError
from rlhf.recipe.loading import load_recipe, recipe_from
from rlhf.recipe.resolve import located
from rlhf.runs.folder import RunFolder
from rlhf.trainer.checkpoint import write_checkpoint
from rlhf.types import Written
from tests.small_tasks import sorting

RECIPES = Path(__file__).parents[2] / "recipes" / "preference_ppo"


async def fill(folder: Path) -> dict[str, Written]:
    (folder / "huggingface").mkdir()
    (folder / "huggingface" / "config.json").write_text("{}")
    return synced(folder, [folder / "huggingface" / "config.json"])


def checkpoint(run: Path, version: int) -> str:
    root = run / "checkpoints"
    written = write_checkpoint(root, version=version, next_ordinal=0, outstanding=(), save=fill)
    return str(asyncio.run(written) / "huggingface")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for version in (3, 10):
        checkpoint(tmp_path, version)
    return tmp_path


def recipe(run: str, own: str | None = None) -> Any:
    trainer = {"algorithm": "ppo", "critic": {"path": run}, "reference_path": run}
    return recipe_from(
        {
            "model": {"path": run}, "data": {"train": sorting()},
            "reward": {"kind": "model", "model": run}, "trainer": trainer, "run": {"dir": own},
        }
    )  # fmt: skip


def named(made: Any) -> list[str]:
    trainer = made.recipe.trainer
    return [made.recipe.model.path, made.recipe.reward.model, trainer.critic.path, trainer.reference_path]


def test_every_model_that_a_recipe_names_may_be_a_run_folder(run: Path) -> None:
    newest = str(run / "checkpoints" / "version-000010" / "huggingface")
    assert named(located(recipe(str(run)))) == [newest] * 4
    assert located(located(recipe(str(run)))) == located(recipe(str(run)))


def test_a_resumed_run_keeps_the_checkpoints_that_its_run_folders_stood_for(run: Path, tmp_path: Path) -> None:
    mine = RunFolder.keep(tmp_path / "mine")
    began = located(recipe(str(run), str(mine.path)))
    mine.write_recipe(began.recipe, began.origins)
    newer = checkpoint(run, 20)
    assert named(located(recipe(str(run), str(mine.path)), resumed=True)) == named(began)
    assert named(located(recipe(str(run), str(mine.path)))) == [newer] * 4
    assert named(located(recipe("owner/name", str(mine.path)), resumed=True)) == ["owner/name"] * 4


def test_model_folders_and_hub_names_stay(run: Path) -> None:
    folder = str(run / "checkpoints" / "version-000003" / "huggingface")
    assert named(located(recipe(folder))) == [folder] * 4
    assert named(located(recipe("owner/name"))) == ["owner/name"] * 4


def test_a_run_that_left_nothing_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match="there is no finished checkpoint"):
        located(recipe(str(tmp_path)))


@pytest.mark.parametrize("name", ["1_sft", "2_reward_model", "3_ppo"])
def test_the_steps_of_preference_ppo_are_recipes(name: str) -> None:
    assert load_recipe(RECIPES / f"{name}.yaml").recipe.name.startswith("preference-")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("data.train.chosen_column=null", "data.train.rejected_column=null"),
            "data.train.chosen_column and rejected_column are",
        ),
        (("model.lora={rank: 4}",), "model.lora is for policies"),
    ],
)
def test_what_a_reward_model_cannot_be_trained_with_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe(RECIPES / "2_reward_model.yaml", overrides)


def test_a_preset_is_beneath_the_base_that_alone_names_it(tmp_path: Path) -> None:
    base, own = tmp_path / "base.yaml", tmp_path / "own.yaml"
    base.write_text(
        "model: {tiny: {}}\ndata: {train: {path: rows.jsonl}}\nreward: {kind: exact}\n"
        "trainer: {algorithm: dapo, loss: {clip_high: 0.4}}\n"
    )
    own.write_text("base: base.yaml\n")
    assert load_recipe(own).recipe.trainer.loss.clip_high == 0.4
    assert load_recipe(own, ["trainer.algorithm=gspo"]).recipe.trainer.loss.clip_high == 4e-4
