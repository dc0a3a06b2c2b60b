"""A recipe of kind `sft` trains on a dataset's demonstrations, and leaves a model that RL can start from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf.controller.sft import rendered
from rlhf.errors import DataError
from rlhf.recipe.loading import load_recipe
from tests.end_to_end.running import Run, train

pytestmark = pytest.mark.engine


def recipe_in(folder: Path, responses: list[str]) -> Path:
    """A recipe, and its demonstrations beside it: in two files, whose columns have names of their own."""
    for file, column in (("rows", "response"), ("more", "reply")):
        rows = [{"question": f"number {n}", column: response} for n, response in enumerate(responses)]
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = folder / "parrot.yaml"
    recipe.write_text(f"""
kind: sft
model: {{tiny: {{hidden_size: 64, intermediate_size: 128, max_position_embeddings: 64}}}}
data:
  train:
    - {{path: {folder / "rows.jsonl"}, answer_column: null, response_column: response, min_prompt_tokens: 2}}
    - {{path: {folder / "more.jsonl"}, answer_column: null, response_column: reply}}
trainer: {{updates: 30, groups_per_update: 8, save_every: 20, optimizer: {{learning_rate: 1e-2}}}}
cluster: {{kind: local}}
""")
    return recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("sft")
    return train(folder / "run", folder / "models", recipe=recipe_in(folder, ["yes"] * 20))


def test_it_learns_what_it_is_shown(run: Run) -> None:
    losses = [line["sft/nll"] for line in run.metrics]
    assert len(losses) == 30
    assert losses[0] > 4
    assert losses[-1] < 0.1


def test_the_summary_counts_demonstrations_over_the_epochs(run: Run) -> None:
    assert run.summary["outcome"] == "finished"
    assert (run.summary["updates"], run.summary["samples"]) == (30, 240)


def test_checkpoints_are_where_the_recipe_wants_them_and_hold_a_model(run: Run) -> None:
    assert sorted(path.name for path in (run.folder / "checkpoints").iterdir()) == ["version-000020", "version-000030"]
    assert (run.model / "model.safetensors").is_file()


def test_a_demonstration_longer_than_the_context_is_refused(run: Run, tmp_path: Path) -> None:
    recipe = load_recipe(recipe_in(tmp_path, ["yes" * 50])).recipe
    with pytest.raises(DataError, match=r"rows\.jsonl, row 1: the demonstration has 178 tokens, more than .* 64"):
        list(rendered(recipe, str(run.model), 64, print))
