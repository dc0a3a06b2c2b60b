"""The shape of a decoder with gated MLPs, and the memory of its passes, from its `config.json` alone: in milliseconds
and without torch, where `rlhf.recipe.planning.meta_model` takes seconds and is exact."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf.models.model_files import UNNAMED_CONTEXT, Values, context_tokens, text_config
from rlhf.recipe.planning.shape import DTYPE_BYTES, Activations, LinearBytes, ModelShape, head_line


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSizes:
    """What a configuration says: `inner` is the width of an MLP or of an expert, of which a token takes `routed`."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    experts: int
    routed: int
    vocabulary: int
    tied: bool

    @property
    def attention(self) -> int:
        """The weights of attention in a layer."""
        return self.width * self.head_size * (2 * self.heads + 2 * self.kv_heads)

    @property
    def expert(self) -> int:
        """The weights of an MLP or an expert."""
        return 3 * self.width * self.inner

    @property
    def parameters(self) -> int:
        tables = (1 if self.tied else 2) * self.vocabulary * self.width
        return self.layers * (self.attention + self.experts * self.expert) + tables


def decoder_sizes(values: Values) -> DecoderSizes:
    """Read the sizes of a decoder."""
    text = text_config(values)

    def read(key: str, default: float) -> int:
        value = text.get(key) or default
        return int(max(value) if isinstance(value, list) else value)

    width, heads = read("hidden_size", 0), read("num_attention_heads", 1)
    experts = read("num_experts", read("num_local_experts", read("n_routed_experts", 1)))
    inner = read("intermediate_size", 4 * width)
    return DecoderSizes(
        width=width,
        layers=read("num_hidden_layers", 0),
        heads=heads,
        kv_heads=read("num_key_value_heads", heads),
        head_size=read("head_dim", width // heads),
        inner=read("moe_intermediate_size", inner) if experts > 1 else inner,
        experts=experts,
        routed=min(read("num_experts_per_tok", experts), experts),
        vocabulary=read("vocab_size", 0),
        tied=bool(text.get("tie_word_embeddings", values.get("tie_word_embeddings"))),
    )


def rough_shape(name: str, values: Values) -> ModelShape:
    """Estimate the shape of a model."""
    sizes = decoder_sizes(values)
    embedding = sizes.vocabulary * sizes.width
    linear = 4 * sizes.width + 2 * (sizes.heads + sizes.kv_heads) * sizes.head_size
    return ModelShape(
        name=name,
        architecture=str(values["model_type"]),
        parameters=sizes.parameters,
        multiplied=sizes.layers * (sizes.attention + sizes.routed * sizes.expert) + embedding,
        layers=sizes.layers,
        layer_parameters=sizes.attention + sizes.experts * sizes.expert,
        largest_parameter=max(embedding, 2 * sizes.experts * sizes.expert // 3),
        head_parameters=embedding,
        adapter=sizes.layers * (linear + (3 * (sizes.width + sizes.inner) if sizes.experts == 1 else 0)),
        tied=sizes.tied,
        hidden_size=sizes.width,
        vocabulary=sizes.vocabulary,
        kv_heads=sizes.kv_heads,
        head_size=sizes.head_size,
        cached_layers=sizes.layers,
        context_tokens=context_tokens(text_config(values)) or UNNAMED_CONTEXT,
    )


def rough_activations(
    shape: ModelShape, values: Values, dtype: str, *, checkpointing: bool, memory: int | None
) -> Activations:
    """Estimate the passes: elements of a token in a layer, as they are in the models of `known_shapes.json`."""
    sizes, width = decoder_sizes(values), DTYPE_BYTES[dtype]
    inner = sizes.inner * sizes.routed
    saved = width * shape.layers * (1.3 * sizes.width if checkpointing else 4 * inner + 12 * sizes.width)
    again = width * (5 * inner + 15 * sizes.width)
    return Activations(
        saved=LinearBytes(base=0.0, each=saved),
        decoder_peak=LinearBytes(base=0.0, each=saved + again),
        head_peak=head_line(shape.vocabulary, shape.hidden_size, width, memory),
    )
