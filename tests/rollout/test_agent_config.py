"""What a recipe with an agent asks for, and what is refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.errors import ConfigError
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.preflight import check_players
from rlhf.recipe.schema import Recipe
from tests.small_tasks import sorting

AGENT = {"program": "tests.rollout.test_agent:twice"}


def recipe(**parts: Any) -> Recipe:
    sections = {"model": {"tiny": {}}, "data": {"train": sorting()}, "agent": AGENT} | parts
    return recipe_from(sections).recipe


@pytest.mark.parametrize("kind", ["exact", "environment"])
def test_an_agents_episodes_are_scored_by_the_recipe_or_by_the_agent(kind: str) -> None:
    assert recipe(reward={"kind": kind}).agent is not None


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"environment": {"environment": "a:B"}}, "both environment and agent"),
        ({"kind": "sft"}, "kind: sft plays no episodes; remove agent"),
        ({"trainer": {"overlong": {"buffer_tokens": 2}}}, "with agent an episode has several"),
        ({"agent": {"program": "my_agent"}}, "give module:function"),
        ({"agent": AGENT | {"tool_format": "xml"}}, r"agent\.tool_format: use auto, hermes, llama3_json, .*got 'xml'"),
        ({"agent": AGENT | {"timeout": 3}}, "timeout"),
        ({"agent": AGENT | {"preset": "pi"}}, "give program, or else command or preset"),
        ({"agent": {"timeout_seconds": 3}}, "give program, or else command or preset"),
        ({"agent": {"command": ["sh"]}, "reward": {"kind": "environment"}}, r"agent\.grader .* write both or neither"),
        ({"agent": {"command": ["sh"], "grader": ["sh"]}}, r"agent\.grader .* write both or neither"),
        ({"agent": None, "reward": {"kind": "environment"}}, "neither environment nor agent"),
    ],
)
def test_what_does_not_go_together_is_refused(parts: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        recipe(**parts)


@pytest.mark.parametrize(
    ("agent", "setting"),
    [({"program": "nowhere:agent"}, "agent.program"), (AGENT | {"tool_format": "nowhere:read"}, "agent.tool_format")],
)
def test_what_cannot_be_imported_is_told_before_anything_starts(agent: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"{setting} is nowhere:"):
        check_players(recipe(agent=agent))
