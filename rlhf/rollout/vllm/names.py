"""Check that the tensor names of a weight sync match an engine's adapter layers exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def unknown_and_missing(names: Sequence[str], layers: Mapping[str, tuple[str, ...]]) -> tuple[list[str], list[str]]:
    """Names that match no layer, and names that layers lack. `layers` gives the tensor names of each layer."""
    wanted = {source for sources in layers.values() for source in sources}
    return [name for name in names if name not in wanted], sorted(wanted - set(names))
