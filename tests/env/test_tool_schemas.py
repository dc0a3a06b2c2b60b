"""Schemas of tools: what no call can be checked against is found."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.env.wire import problem_of_schema


def of(**property: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": property}}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (of(type="string", required=True), "is invalid at $.properties.a.required: True is not of type 'array'"),
        ({"type": "dict"}, "is invalid at $.type: 'dict' is not valid under any of the given schemas"),
        ({"type": "string"}, "has type 'string', but a tool takes an 'object'"),
        (of(pattern="("), "is invalid at $.properties.a.pattern: '(' is not a 'regex'"),
        (of(**{"$ref": "#/$defs/place"}), "refers to '#/$defs/place' but does not define it"),
        (of(items={"$ref": "#place"}), "refers to '#place' but does not define it"),
        (
            of(**{"$ref": "https://example.org/a.json"}),
            "refers to 'https://example.org/a.json' but does not define it",
        ),
        (of(**{"$ref": "#"}), None),
        (of(**{"$ref": "#place"}) | {"$defs": {"b": {"$anchor": "place"}}}, None),
        (of(**{"$ref": "#/definitions/b"}) | {"definitions": {"b": {}}}, None),
        ({"$schema": "http://json-schema.org/draft-07/schema#"} | of(items=[{}]), None),
        ({"properties": {"$ref": {"type": "string"}}}, None),
        ({"type": ["object", "null"]}, None),
        ({}, None),
    ],
)
def test_a_schema_is_valid_or_its_problem_is_told(schema: dict[str, Any], problem: str | None) -> None:
    assert problem_of_schema(schema) == problem
