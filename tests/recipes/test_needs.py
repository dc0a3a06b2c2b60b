"""What docs/gpu.md says that a recipe needs is what the recipe's own header says, which the planner's tests hold."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs" / "gpu.md").read_text()
ROWS = re.findall(r"^\|[^|]+\| `(recipes/\w+\.yaml)` \|[^|]+\| ([\d.]+), ([\d.]+) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("recipe", "rank", "engine"), ROWS, ids=[recipe for recipe, _, _ in ROWS])
def test_the_page_has_the_figures_of_the_recipe(recipe: str, rank: str, engine: str) -> None:
    header = (ROOT / recipe).read_text()
    assert f"At most {rank} GiB a rank and {engine} GiB an engine's GPU" in header


def test_every_planned_recipe_is_on_the_page() -> None:
    planned = {f"recipes/{file.name}" for file in (ROOT / "recipes").glob("*.yaml") if "GiB a rank" in file.read_text()}
    assert planned == {recipe for recipe, _, _ in ROWS}
