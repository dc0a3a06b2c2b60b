"""Shapes and passes of models without torch: of well-known ones from a file, which `python -m
tests.goldens.known_shapes --write` makes from the modules (`rlhf.recipe.planning.meta_model`), else roughly."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from rlhf.models.model_files import UNNAMED_CONTEXT, Values, context_tokens, text_config
from rlhf.recipe.model_configs import known_models
from rlhf.recipe.planning.shape import Activations, LinearBytes, ModelShape, head_line

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

    def activations(self, *, checkpointing: bool, memory: int | None, width: int = 2) -> Activations:
        """Estimate the passes on a GPU with `memory` bytes (None: a CPU), with weights of `width` bytes."""
        saved, peak = (width / 2 * each for each in (self.checkpointed if checkpointing else self.plain))
        head = head_line(self.shape.vocabulary, self.shape.hidden_size, width, memory)
        return Activations(
            saved=LinearBytes(base=0.0, each=saved), decoder_peak=LinearBytes(base=0.0, each=peak), head_peak=head
        )


def known_model(name: str, values: Values) -> KnownModel | None:
    """Return the model of this name, if `values` are its configuration."""
    return _stored().get(name) if known_models().get(name) == values else None


def rough_model(name: str, values: Values) -> KnownModel:
    """Estimate a decoder with gated MLPs from its `config.json` alone, with passes as in the models of the file."""
    text = text_config(values)

    def read(key: str, default: int) -> int:
        value = text.get(key) or default
        return int(max(value) if isinstance(value, list) else value)

    width, layers, heads = read("hidden_size", 0), read("num_hidden_layers", 0), read("num_attention_heads", 1)
    kv_heads, head_size = read("num_key_value_heads", heads), read("head_dim", width // heads)
    experts = read("num_experts", read("num_local_experts", read("n_routed_experts", 1)))
    inner = read("intermediate_size", 4 * width)
    inner = read("moe_intermediate_size", inner) if experts > 1 else inner
    routed = min(read("num_experts_per_tok", experts), experts)  # of the experts, those that a token is sent to
    tied = bool(text.get("tie_word_embeddings", values.get("tie_word_embeddings")))
    embedding = read("vocab_size", 0) * width
    attention, expert = 2 * width * head_size * (heads + kv_heads), 3 * width * inner
    adapted = 4 * width + 2 * (heads + kv_heads) * head_size + (3 * (width + inner) if experts == 1 else 0)
    shape = ModelShape(
        name=name,
        architecture=str(values.get("model_type")),
        parameters=layers * (attention + experts * expert) + (1 if tied else 2) * embedding,
        layer_parameters=attention + experts * expert,
        largest_parameter=max(embedding, 2 * experts * expert // 3),
        context_tokens=context_tokens(text) or UNNAMED_CONTEXT,
        layers=layers, cached_layers=layers, head_parameters=embedding, adapter=layers * adapted, tied=tied,
        hidden_size=width, vocabulary=read("vocab_size", 0), kv_heads=kv_heads, head_size=head_size,
    )  # fmt: skip
    plain, checkpointed = 2 * layers * (4 * inner * routed + 12 * width), 2 * layers * 1.3 * width
    computed = 2 * (5 * inner * routed + 15 * width)  # by the layer whose backward pass runs
    return KnownModel(
        shape=shape, plain=(plain, plain + computed), checkpointed=(checkpointed, checkpointed + computed)
    )


@cache
def _stored() -> dict[str, KnownModel]:
    table = json.loads(files("rlhf.recipe.planning").joinpath("known_shapes.json").read_text())
    return {
        name: KnownModel(
            shape=ModelShape(**model["shape"]), plain=tuple(model["plain"]), checkpointed=tuple(model["checkpointed"])
        )
        for name, model in table.items()
    }
