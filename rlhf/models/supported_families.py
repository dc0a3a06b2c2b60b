"""The model families that learner and engine compute equally, from the measurements in `supported_families.json`.

`python -m tests.architectures --write` writes that file, with a verdict for each `model_type` that was tried.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Literal

from rlhf.models.model_files import Values, text_config

Verdict = Literal["right", "right, alone", "refused"]
NOT_MEASURED = "not measured: it is proved at the start of the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySupport:
    """Whether learner and engine agree, with packed rows or with every sequence alone, or it is refused."""

    verdict: Verdict
    reason: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}" if self.reason else self.verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """The verdicts by `model_type`, on text and on `images`, with the date and the library versions of the
    measurement."""

    date: str
    versions: Mapping[str, str]
    families: Mapping[str, FamilySupport]
    images: Mapping[str, FamilySupport] = field(default_factory=dict)

    def verdict_text(self, config: Values) -> str:
        """Return the verdict on the model of a `config.json`, in words; of a nested model the outer one."""
        found, shown = self._family(config), self.images.get(str(config.get("model_type")))
        if found is None and shown is None:
            return NOT_MEASURED
        verdict = f"{found or NOT_MEASURED}; with images {shown}" if shown else str(found)
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return f"{verdict} (measured {self.date} with {versions})"

    def verdict(self, config: Values) -> Verdict | None:
        """Return the verdict on the model of a `config.json`; None if its family was not measured."""
        found = self._family(config)
        return found.verdict if found else None

    def _family(self, config: Values) -> FamilySupport | None:
        types = [str(values.get("model_type")) for values in (config, text_config(config))]
        return next((self.families[name] for name in types if name in self.families), None)


def measurements() -> Measurements:
    table = json.loads(files("rlhf.models").joinpath("supported_families.json").read_text())
    parts = {part: {name: FamilySupport(**one) for name, one in table[part].items()} for part in ("families", "images")}
    return Measurements(date=table["date"], versions=table["versions"], **parts)
