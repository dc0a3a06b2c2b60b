"""The names of tool formats in recipes are those that can be read."""

from __future__ import annotations

import pytest

from rlhf.chat.tool_calls import FORMATS
from rlhf.chat.tool_format_names import AUTO, OWN_FORMATS, TOOL_FORMATS, VLLM_FORMATS


def test_every_name_of_a_recipe_is_a_format_and_every_format_has_a_name() -> None:
    assert tuple(FORMATS) == OWN_FORMATS
    assert len(set(TOOL_FORMATS)) == len(TOOL_FORMATS)
    assert {AUTO, *VLLM_FORMATS}.isdisjoint(OWN_FORMATS)


@pytest.mark.engine
def test_every_name_of_a_vllm_parser_is_known_to_vllm() -> None:
    from vllm.tool_parsers import ToolParserManager

    assert set(VLLM_FORMATS) <= set(ToolParserManager.list_registered())
