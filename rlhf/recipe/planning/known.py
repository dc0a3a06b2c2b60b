"""Shapes and passes of the well-known models, as their modules have them (`rlhf.recipe.planning.meta`), kept in a file:
those models are planned without torch. `python -m tests.goldens.known_shapes --write` writes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from rlhf.recipe.planning.configs import Values, known_models
from rlhf.recipe.planning.shape import DTYPE_BYTES, Activations, Line, ModelShape, head_on_gpu

Slopes = tuple[float, float]
KEPT_LENGTHS, KEPT_TOKENS = (512, 8192, 1), 16384
"""Tokens of a prompt and of a reply, and of a micro-batch, for which passes are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """`plain` and `checkpointed` are bytes that a token of a micro-batch adds to what a decoder saves and to its peak,
    in 16 bits; `head_chunk` are the lines of one chunk of the head over its tokens."""

    shape: ModelShape
    plain: Slopes
    checkpointed: Slopes
    head_chunk: tuple[Line, ...]

    def activations(self, *, checkpointing: bool, memory: int) -> Activations:
        """The passes on a GPU with so much memory."""
        saved, peak = self.checkpointed if checkpointing else self.plain
        shape = self.shape
        head = head_on_gpu(self.head_chunk, shape.vocabulary, shape.hidden_size, DTYPE_BYTES["bfloat16"], memory)
        return Activations(saved=Line(base=0.0, each=saved), decoder_peak=Line(base=0.0, each=peak), head_peak=head)


def known_model(name: str, values: Values) -> KnownModel | None:
    """What is kept of the model of this name, if `values` are its configuration."""
    return _kept().get(name) if known_models().get(name) == values else None


@cache
def _kept() -> dict[str, KnownModel]:
    told = json.loads(files("rlhf.recipe.planning").joinpath("known_shapes.json").read_text())
    return {name: _read(one) for name, one in told.items()}


def _read(told: Values) -> KnownModel:
    shape = told["shape"]
    return KnownModel(
        shape=ModelShape(**shape | {"windows": tuple(shape["windows"])}),
        plain=tuple(told["plain"]),
        checkpointed=tuple(told["checkpointed"]),
        head_chunk=tuple(Line(**line) for line in told["head_chunk"]),
    )
