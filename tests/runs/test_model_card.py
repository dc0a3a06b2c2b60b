"""Model cards of made runs: only facts of the run folder, none of its paths, and a recipe that trains the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf.recipe.loading import LoadedRecipe, load_recipe
from rlhf.recipe.shipped import RECIPES
from rlhf.runs.folder import RunFolder
from rlhf.runs.model_card import CARD, export_model
from rlhf.runs.resolved import resolved_yaml
from tests.runs.made_run import made_run

SUMMARY = {
    "outcome": "finished", "updates": 24, "samples": 12288,
    "evaluations": {"a|b": {"problems": 256, "start": {"avg@1": 0.25}, "end": {"avg@1": 0.984375}}},
}  # fmt: skip


def trained(folder: Path, *overrides: str, digest: str = "c0ffee", version: int = 24) -> tuple[Path, LoadedRecipe]:
    """The model folder of a made run of the quickstart, and the run's recipe."""
    loaded = load_recipe(RECIPES / "quickstart.yaml", [f"run.dir={folder}", *overrides])
    run = made_run(folder, [], summary=SUMMARY, recipe=resolved_yaml(loaded.recipe, loaded.origins))
    model = run / "checkpoints" / f"version-{version:06d}" / "huggingface"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"transformers_version": "5.19.0"}')
    (model.parent / "trainer_state.json").write_text(json.dumps({"provenance": {"model.path": digest}}))
    return model, loaded


def card(model: Path, output: Path) -> tuple[dict[str, Any], str]:
    """Its front matter, and the rest."""
    _, head, text = (export_model(str(model), output) / CARD).read_text().split("---\n", 2)
    return yaml.safe_load(head), text


def test_a_card_says_what_was_trained_on_what_and_how_well(tmp_path: Path) -> None:
    model, _ = trained(tmp_path / "run", "trainer.algorithm=gspo", "trainer.minibatches=2")
    head, text = card(model, tmp_path / "out")
    assert head == {"library_name": "transformers", "tags": ["rlhf", "rl", "gspo"]}
    for fact in (
        "start model | made by the recipe", "trained on | recipes.tasks.sorting:tasks", "updates | 24 of 24",
        "trained episodes | 12288", "transformers | 5.19.0", "digest of model.path | c0ffee",
        r"a\|b | 256 | avg@1 | 0.25 | 0.9844",
    ):  # fmt: skip
        assert f"| {fact} |" in text


def test_its_recipe_trains_the_same_and_names_no_folder(tmp_path: Path) -> None:
    data = tmp_path / "private" / "rows.jsonl"
    data.parent.mkdir()
    data.write_text('{"question": "a secret", "answer": "1"}\n')
    own = ("data.train.tasks=null", "data.train.arguments={}", f"data.train.path={data}", "trainer.algorithm=dapo")
    model, loaded = trained(tmp_path / "run", *own)
    _, text = card(model, tmp_path / "out")
    assert str(tmp_path) not in text
    assert "secret" not in text
    again = tmp_path / "again" / "recipe.yaml"
    again.parent.mkdir()
    again.write_text(text.partition("```yaml\n")[2].partition("```")[0])
    data.rename(again.parent / "rows.jsonl")
    own_places = {"run", "cluster", "python_path", "data"}
    assert load_recipe(again).recipe.model_dump(exclude=own_places) == loaded.recipe.model_dump(exclude=own_places)
    assert load_recipe(again).recipe.data.train.path == str(again.parent / "rows.jsonl")


def test_the_evaluation_after_training_is_of_the_last_weights_alone(tmp_path: Path) -> None:
    model, _ = trained(tmp_path / "run", version=6)
    _, text = card(model, tmp_path / "out")
    assert "| updates | 6 of 24 |" in text
    assert "| 0.25 | - |" in text
    assert "12288" not in text


@pytest.mark.parametrize(("folder", "after"), [("huggingface", "0.5"), ("huggingface_ema", "-")])
def test_an_evaluation_is_of_its_version_and_its_weights_alone(tmp_path: Path, folder: str, after: str) -> None:
    model, _ = trained(tmp_path / "run", version=6)
    rows = [json.dumps({"update": update, "eval/a|b/avg@1": update / 12}) + "\n" for update in (6, 12)]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(rows))
    _, text = card(model.rename(model.with_name(folder)), tmp_path / "out")
    assert f"| 0.25 | {after} |" in text


def test_a_card_tells_the_recipe_of_its_updates_and_not_of_later_ones(tmp_path: Path) -> None:
    made = []
    for version, rate in ((6, "1e-3"), (24, "2e-3")):
        model, loaded = trained(tmp_path / "run", f"trainer.optimizer.learning_rate={rate}", version=version)
        if made:
            (tmp_path / "run" / "recipe.yaml").write_text(made[0])
            RunFolder(tmp_path / "run").write_recipe(loaded.recipe, loaded.origins, version=12)
        made.append((tmp_path / "run" / "recipe.yaml").read_text())
    early = tmp_path / "run" / "checkpoints" / "version-000006" / "huggingface"
    _, text = card(early, tmp_path / "early")
    assert "learning_rate: 0.001" in text
    assert "learning_rate: 0.002" not in text
    _, text = card(model, tmp_path / "late")
    assert text.index("Up to update 12") < text.index("learning_rate: 0.001") < text.index("Up to update 24:")
    assert text.index("Up to update 24:") < text.index("learning_rate: 0.002")


@pytest.mark.parametrize(("digest", "named"), [("commit 0a1b", True), ("c0ffee", False)])
def test_a_base_model_is_named_where_it_is_of_the_hub(tmp_path: Path, digest: str, named: bool) -> None:
    model, _ = trained(
        tmp_path / "run", "model.tiny=null", "model.warmup=null", "model.path=owner/model", digest=digest
    )
    head, text = card(model, tmp_path / "out")
    assert head.get("base_model") == ("owner/model" if named else None)
    assert "| start model | owner/model |" in text


def test_another_folder_gets_no_card_and_a_readme_stays(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text("{}")
    assert not (export_model(str(bare), tmp_path / "copy") / CARD).exists()
    model, _ = trained(tmp_path / "run")
    (model / CARD).write_text("of its author")
    assert (export_model(str(model), tmp_path / "out") / CARD).read_text() == "of its author"
