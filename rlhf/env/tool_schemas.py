"""Check the JSON schemas of an environment's tools, before a call is validated against one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
from jsonschema_specifications import REGISTRY
from referencing import Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012


def problem_of_schema(schema: dict[str, Any]) -> str | None:
    """Return why a tool's `input_schema`, plain JSON, is not a valid schema of an object; None if it is one."""
    kind = schema.get("type", "object")
    try:
        jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator).check_schema(schema)
    except jsonschema.SchemaError as error:
        return f"is invalid at {error.json_path}: {error.message:.200}"
    if "object" not in kind:
        return f"has type {kind!r:.100}, but a tool takes an 'object'"
    root = Resource.from_contents(schema, default_specification=DRAFT202012)
    dangling = next(_dangling(root, REGISTRY.resolver_with_root(root)), None)
    return dangling and f"refers to {dangling!r:.100} but does not define it"


def _dangling(schema: Any, resolver: Any) -> Iterator[str]:
    """Yield the dangling references of a schema and its subschemas."""
    if isinstance(schema.contents, Mapping) and "$ref" in schema.contents:
        try:
            resolver.lookup(schema.contents["$ref"])
        except Unresolvable:
            yield schema.contents["$ref"]
    for inner in schema.subresources():
        yield from _dangling(inner, resolver.in_subresource(inner))
