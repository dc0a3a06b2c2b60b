"""Read the shapes and passes of well-known models from a file, to plan them without torch. `python -m
tests.goldens.known_shapes --write` makes the file from the models' modules (`rlhf.recipe.planning.meta_model`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from rlhf.models.model_files import Values
from rlhf.recipe.model_configs import known_models
from rlhf.recipe.planning.shape import DTYPE_BYTES, Activations, LinearBytes, ModelShape, head_line

Slopes = tuple[float, float]
STORED_LENGTHS, STORED_TOKENS = (512, 8192, 1), 16384
"""Tokens of a prompt and of a reply, and of a micro-batch, for which passes are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model's shape. `plain` and `checkpointed` are the bytes that a token of a micro-batch adds, in 16 bits, to the
    activations that a decoder saves and to its peak."""

    shape: ModelShape
    plain: Slopes
    checkpointed: Slopes

    def activations(self, *, checkpointing: bool, memory: int) -> Activations:
        """Estimate the passes on a GPU with `memory` bytes."""
        saved, peak = self.checkpointed if checkpointing else self.plain
        head = head_line(self.shape.vocabulary, self.shape.hidden_size, DTYPE_BYTES["bfloat16"], memory)
        return Activations(
            saved=LinearBytes(base=0.0, each=saved), decoder_peak=LinearBytes(base=0.0, each=peak), head_peak=head
        )


def known_model(name: str, values: Values) -> KnownModel | None:
    """Return the model of this name, if `values` are its configuration."""
    return _stored().get(name) if known_models().get(name) == values else None


@cache
def _stored() -> dict[str, KnownModel]:
    table = json.loads(files("rlhf.recipe.planning").joinpath("known_shapes.json").read_text())
    return {
        name: KnownModel(
            shape=ModelShape(**model["shape"]), plain=tuple(model["plain"]), checkpointed=tuple(model["checkpointed"])
        )
        for name, model in table.items()
    }
