"""The recipes' own tasks, as a recipe names them."""

from __future__ import annotations

from typing import Any


def sorting(**arguments: Any) -> dict[str, Any]:
    """A dataset: numbers whose digits are to be sorted."""
    return {"tasks": "recipes.tasks.sorting:tasks", "arguments": arguments}


def sorting_pairs(**arguments: Any) -> dict[str, Any]:
    """A dataset of pairs: of two replies the one with fewer faults is preferred."""
    columns = {"chosen_column": "chosen", "rejected_column": "rejected"}
    return {"tasks": "recipes.tasks.sorting_pairs:tasks", "arguments": arguments, **columns}
