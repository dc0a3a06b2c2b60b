"""Do the names of a publish fill every layer of an engine that takes adapters, and nothing else?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def unknown_and_missing(names: Sequence[str], layers: Mapping[str, tuple[str, ...]]) -> tuple[list[str], list[str]]:
    """Names that no layer takes, and names that layers lack. `layers` gives the tensors that fill each."""
    wanted = {source for sources in layers.values() for source in sources}
    return [name for name in names if name not in wanted], sorted(wanted - set(names))
