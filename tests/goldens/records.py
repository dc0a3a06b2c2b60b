"""Reading a folder of golden arrays: one `Record` is what one function of one peer made of one case."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Record:
    """`inputs` are the arrays of the case by name, `outputs` what the peer made of them by quantity, `params` what the
    manifest says it was called with (None where the manifest does not know the record)."""

    family: str
    case: str
    peer: str
    variant: str
    params: Mapping[str, Any] | None
    inputs: Arrays
    outputs: Arrays

    @property
    def key(self) -> str:
        return f"{self.case}.{self.peer}.{self.variant}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the library says of one quantity: equal to the peer's within tolerances where `where` is not 0.

    With `at_most` the peer's number is a reference of quality: ours may be lower, not higher.
    """

    value: ArrayLike
    where: NDArray[Any] | None = field(default=None)
    rtol: float = 1e-5
    atol: float = 1e-6
    at_most: bool = False


def records(folder: Path) -> Iterator[Record]:
    """Every record of every family of a folder, in the order of the files."""
    manifest = _manifest(folder)
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as archive:
            arrays = {key: archive[key] for key in archive.files}
        yield from _records_of(path.stem, arrays, manifest.get(path.stem, {}).get("variants", {}))


def _manifest(folder: Path) -> Mapping[str, Any]:
    """The folder's own manifest, or that of the public folder beside it."""
    candidates = [folder / "manifest.json", folder.parent / "public" / "manifest.json"]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise FileNotFoundError(f"no manifest.json in {folder} and no public/manifest.json beside it")
    manifest: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return manifest


def _records_of(family: str, arrays: Arrays, variants: Mapping[str, Any]) -> Iterator[Record]:
    inputs: dict[str, dict[str, NDArray[Any]]] = {}
    outputs: dict[tuple[str, str, str], dict[str, NDArray[Any]]] = {}
    for key, array in arrays.items():
        case, peer, rest = key.split(".", 2)
        if peer == "in":
            inputs.setdefault(case, {})[rest] = array
        else:
            variant, quantity = rest.rsplit(".", 1)
            outputs.setdefault((case, peer, variant), {})[quantity] = array
    for (case, peer, variant), made in outputs.items():
        known = variants.get(f"{case}.{peer}.{variant}")
        params = None if known is None else known["params"]
        yield Record(family, case, peer, variant, params, inputs.get(case, {}), made)
