"""Action schemas of foreign servers: the part that is validated here, so that an invalid action costs no request.

A schema is also an instruction to its validator: fetch an address, match a pattern for hours, check one value two to
the thirtieth times. So only some keywords are kept, references are inlined, and the size is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema

from rlhf.env.answers import Undecodable
from rlhf.env.wire import Json

NODES = 512
"""Maximum nesting of schemas, with references inlined."""
WORK = 200_000
"""Maximum product of the numbers of schemas and of values in an action."""
WORDS = frozenset((
    "type", "title", "description", "default", "required", "enum", "const", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems",
))  # fmt: skip
"""Keywords that are kept unchanged; `pattern`, `format`, `$id` and all others are left to the server."""
LISTS, ONE = ("anyOf", "oneOf", "allOf", "prefixItems"), ("items", "additionalProperties")


def action_schema(said: Any) -> Json:
    """The reduced form of a server's action schema. Raises `Undecodable` for an invalid or too large one."""
    if not isinstance(said, dict):
        raise Undecodable("no schema of actions: not an object")
    definitions: dict[str, Any] = {}
    for name in ("$defs", "definitions"):
        if isinstance(found := said.get(name), dict):
            definitions |= {f"#/{name}/{key}": value for key, value in found.items()}
    kept: Json = Copy(definitions).of(said, ())
    try:
        jsonschema.Draft202012Validator.check_schema(kept)
    except (jsonschema.SchemaError, RecursionError) as error:
        detail = error.message if isinstance(error, jsonschema.SchemaError) else "too deep"
        raise Undecodable(f"no schema of actions: {detail:.200}") from None
    return kept


class Copy:
    """Copies the kept part of a schema with references inlined; a recursive reference allows any value."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions, self._nodes = definitions, 0

    def of(self, schema: Any, inside: tuple[str, ...]) -> Any:
        self._nodes += 1
        if self._nodes > NODES:
            raise Undecodable(f"no schema of actions: it says more than {NODES} things")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise Undecodable("no schema of actions: a part of it is no schema")
        reference = schema.get("$ref")
        if isinstance(reference, str):
            known = reference in self._definitions and reference not in inside
            return self.of(self._definitions[reference], (*inside, reference)) if known else {}
        kept = {name: value for name, value in schema.items() if name in WORDS}
        kept |= {name: self.of(schema[name], inside) for name in ONE if name in schema}
        kept |= {name: [self.of(one, inside) for one in schema[name]] for name in LISTS if _many(schema.get(name))}
        if isinstance(properties := schema.get("properties"), dict):
            kept["properties"] = {name: self.of(one, inside) for name, one in properties.items()}
        return kept


def _many(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def problem_of(action: Any, text: str, schema: Mapping[str, Any]) -> str | None:
    """What is wrong with an action that was written as `text`; None where no error is found."""
    if not isinstance(action, dict):
        return "it is no object"
    values = 1 + text.count(",") + text.count("[") + text.count("{")
    if values * size(schema) > WORK:
        return "it is too long"
    try:
        jsonschema.validate(action, dict(schema), jsonschema.Draft202012Validator)
    except jsonschema.ValidationError as error:
        return str(error.message)
    return None


def size(schema: Any) -> int:
    """Number of nested schemas."""
    if not isinstance(schema, dict):
        return 1
    inner = [*(schema.get("properties") or {}).values(), *(schema[name] for name in ONE if name in schema)]
    inner += [one for name in LISTS for one in schema.get(name) or ()]
    return 1 + sum(map(size, inner))
