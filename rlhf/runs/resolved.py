"""The resolved recipe: every value with its origin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlhf.config import Config, Origins, dump_yaml


def resolved_yaml(config: Config, origins: Origins) -> str:
    """Write every value of `config` as YAML that `load_recipe` can read, with its origin as a trailing comment."""
    lines = list(_lines(config.model_dump(mode="json"), origins))
    width = min(48, max((len(text) for text, origin in lines if origin), default=0))
    return "".join(f"{text:<{width}}  # {origin}\n" if origin else f"{text}\n" for text, origin in lines)


def _lines(values: Mapping[str, Any], origins: Origins, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Iterate over (line, origin) of every key, depth first; the line of a mapping has no origin."""
    indent = "  " * prefix.count(".")
    for key, value in values.items():
        dotted = prefix + key
        if isinstance(value, Mapping) and value:
            yield f"{indent}{key}:", ""
            yield from _lines(value, origins, dotted + ".")
        else:
            yield f"{indent}{key}: {_scalar(value)}", origins.get(dotted, "default")


def _scalar(value: Any) -> str:
    """Return a YAML scalar on one line; quote text with line breaks."""
    text = dump_yaml(value, default_flow_style=True, width=float("inf"), allow_unicode=True).strip()
    text = text.removesuffix("...").strip()
    return text if "\n" not in text else dump_yaml(value, default_style='"', width=float("inf")).strip()
