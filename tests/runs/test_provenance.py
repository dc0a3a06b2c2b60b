"""What a run began with is known by its content: names may stay while what is behind them changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf.data.config import DatasetConfig, FewShotConfig
from rlhf.errors import ConfigError
from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import save_tiny
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.schema import Recipe
from rlhf.runs import provenance
from rlhf.runs.provenance import TEMPLATE, check_provenance
from tests.data import row_functions

ROWS = [{"question": f"{n} + 1", "answer": str(n + 1)} for n in range(1000)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with its tokenizer and chat template."""
    return save_tiny(TinyModelConfig(hidden_size=64, intermediate_size=128), 0, tmp_path_factory.mktemp("model"))


@pytest.fixture
def recipe(tmp_path: Path, made: Path) -> Recipe:
    """With its own copies of the rows, the start model and the reference."""
    for name in ("start", "reference"):
        shutil.copytree(made, tmp_path / name)
    write_rows(tmp_path, ROWS)
    return recipe_from(
        {
            "model": {"path": str(tmp_path / "start")}, "data": {"train": {"path": str(tmp_path / "rows.jsonl")}},
            "reward": {"kind": "exact"}, "trainer": {"reference_path": str(tmp_path / "reference"),
            "kl": {"coefficient": 0.1}},
        }
    ).recipe  # fmt: skip


def write_rows(folder: Path, rows: list[dict[str, str]]) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_tokenizer_without_a_template_has_a_digest_too(tmp_path: Path, recipe: Recipe):
    start = str(recipe.model.path)
    with_one = provenance.template_digest(start, trust_remote_code=False)
    (tmp_path / "start" / "chat_template.jinja").unlink()
    assert provenance.template_digest(start, trust_remote_code=False) != with_one


def began_with(recipe: Recipe, model: str) -> dict[str, str]:
    reference = recipe.trainer.reference_path
    return provenance.provenance(model, data=recipe.data, others={"trainer.reference_path": reference})


def drop_a_row(folder: Path) -> None:
    write_rows(folder, ROWS[:499] + ROWS[500:])


def another_template(folder: Path) -> None:
    for file in (folder / "start").glob("chat_template.jinja"):
        file.write_text(file.read_text() + "\n")
        return
    config = json.loads((folder / "start" / "tokenizer_config.json").read_text())
    config["chat_template"] += "\n"
    (folder / "start" / "tokenizer_config.json").write_text(json.dumps(config))


def other_weights(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        save_tiny(TinyModelConfig(hidden_size=64, intermediate_size=128), 1, folder / "other")
        shutil.copy(folder / "other" / "model.safetensors", folder / name / "model.safetensors")

    return change


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (drop_a_row, "data.train"),
        (another_template, TEMPLATE),
        (other_weights("start"), "model.path"),
        (other_weights("reference"), "trainer.reference_path"),
    ],
)
def test_what_changed_behind_its_name_is_refused_by_name(
    recipe: Recipe, tmp_path: Path, change: Callable[[Path], None], key: str
) -> None:
    start = str(recipe.model.path)
    began = began_with(recipe, start)
    check_provenance(tmp_path, began, began_with(recipe, start))
    change(tmp_path)
    with pytest.raises(ConfigError) as refused:
        check_provenance(tmp_path, began, began_with(recipe, start))
    assert str(refused.value).startswith(f"{key}: differs from what {tmp_path} began with")


def test_examples_and_a_function_that_changed_behind_their_names_are_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path, ROWS[:3])
    (shots := tmp_path / "shots.jsonl").write_text('{"question": "1", "answer": "1"}')
    few_shot = FewShotConfig(k=1, path=str(shots))
    config = DatasetConfig(path=str(tmp_path / "rows.jsonl"), row="tests.data.row_functions:plain", few_shot=few_shot)
    first = provenance.data_digest(config)
    assert provenance.data_digest(config) == first
    monkeypatch.setattr(row_functions, "plain", lambda row: row | {"answer": "?"})
    assert (second := provenance.data_digest(config)) != first
    shots.write_text('{"question": "2", "answer": "2"}')
    assert provenance.data_digest(config) not in (first, second)


def test_the_same_models_elsewhere_are_the_same(recipe: Recipe, tmp_path: Path) -> None:
    began = began_with(recipe, str(recipe.model.path))
    moved = shutil.move(tmp_path / "start", tmp_path / "moved")
    check_provenance(tmp_path, began, began_with(recipe, str(moved)))


def test_a_reference_that_is_new_to_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^trainer\.reference_path: differs from what"):
        check_provenance(tmp_path, {"model.path": "a"}, {"model.path": "a", "trainer.reference_path": "b"})


def test_a_large_file_is_read_in_blocks_from_its_first_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "BLOCK_BYTES", 4)
    monkeypatch.setattr(provenance, "BLOCKS", 3)
    (tmp_path / "f").write_bytes(bytes(range(20)))
    assert list(provenance.blocks(tmp_path / "f")) == [bytes(range(4)), bytes(range(8, 12)), bytes(range(16, 20))]
    (tmp_path / "f").write_bytes(bytes(range(10)))
    assert b"".join(provenance.blocks(tmp_path / "f")) == bytes(range(10))
