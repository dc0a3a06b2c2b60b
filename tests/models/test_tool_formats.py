"""The names of tool formats in recipes are those that can be read."""

from __future__ import annotations

from rlhf.models.tool_formats import TOOL_FORMATS
from rlhf.rollout.tool_calls import FORMATS


def test_every_name_of_a_recipe_is_a_format_and_every_format_has_a_name() -> None:
    assert tuple(FORMATS) == TOOL_FORMATS
