"""Do the names of a publish fill every parameter of an engine's model, and nothing else?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def unknown_and_missing(names: Sequence[str], parameters: Mapping[str, tuple[str, ...]]) -> tuple[list[str], list[str]]:
    """Names that no parameter takes, and names that parameters lack, each at most three.

    `parameters` gives the checkpoint names that fill each parameter. A tied head has no parameter of its own, and may
    be sent or not.
    """
    wanted = {source for sources in parameters.values() for source in sources}
    unknown = [name for name in names if name not in wanted and not name.startswith("lm_head.")]
    return unknown[:3], sorted(wanted - set(names))[:3]
