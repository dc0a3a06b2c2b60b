"""What the modules of a model say, in the form in which `rlhf.recipe.planning.known_shapes` keeps it."""

from __future__ import annotations

from rlhf.models.model_files import Values
from rlhf.recipe.planning.known_shapes import STORED_LENGTHS, STORED_TOKENS, KnownModel
from rlhf.recipe.planning.meta_model import activations_of, shape_of
from rlhf.recipe.planning.shape import Activations

MEMORY = 80 * 2**30


def measured(name: str, values: Values) -> KnownModel:
    """The model, from its modules."""
    plain, checkpointed = (
        passes(values, checkpointing=checkpointing, lengths=STORED_LENGTHS) for checkpointing in (False, True)
    )
    return KnownModel(
        shape=shape_of(name, values),
        plain=(plain.saved.each, plain.decoder_peak.each),
        checkpointed=(checkpointed.saved.each, checkpointed.decoder_peak.each),
    )


def passes(values: Values, *, checkpointing: bool, lengths: tuple[int, int, int]) -> Activations:
    """The passes in 16 bits on a card of 80 GB, from its modules."""
    return activations_of(
        values, dtype="bfloat16", checkpointing=checkpointing, attention="auto", lengths=lengths,
        tokens=STORED_TOKENS, memory=MEMORY,
    )  # fmt: skip
