"""Settings of the model to train."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rlhf.config import Config, is_piece

Packing = Literal["auto", "always", "never"]
"""Whether several sequences share a row: where that is correct, always (else an error), or never."""

RoutingMode = Literal["replay", "compare", "ignore"]
"""How the learner uses the experts that engines chose: replay them, compare them with its own, or ignore them."""


PATCH_PIXELS, MERGED_PATCHES, LARGEST_IMAGE = 14, 2, 224 * 224
"""A patch of a tiny model's tower, how many of them along each side become one token, and the pixels of the largest
image: a larger one is made smaller."""
LINEAR_HEAD = 64
"""The smallest head size that vLLM's linear attention takes on a CPU, in bfloat16 only."""


class TinyModelConfig(Config):
    """A small causal LM made from the recipe, with a byte tokenizer and a chat template."""

    architecture: Literal["llama", "qwen2", "qwen3", "qwen3_moe", "qwen3_5", "qwen3_vl"] = "qwen2"
    """Model architecture, as transformers and vLLM implement it. `qwen3_5` alternates linear and full attention; its
    engine needs `model.dtype: bfloat16` on a CPU. `qwen3_vl` sees images (`model.tower`)."""
    hidden_size: int = Field(128, ge=32)
    """Width of the residual stream."""
    intermediate_size: int = Field(512, ge=32)
    """Width of the MLP; in a mixture of experts, of each expert."""
    experts: int = Field(4, ge=2)
    """Number of experts per layer, if the architecture has experts."""
    experts_per_token: int = Field(2, ge=1)
    """Number of experts that each token is routed to."""
    layers: int = Field(2, ge=1)
    """Decoder layers."""
    heads: int = Field(2, ge=1)
    """Attention heads; `hidden_size / heads` is the head dimension (32 or 64 and up for vLLM on a CPU)."""
    kv_heads: int = Field(1, ge=1)
    """Key/value heads."""
    max_position_embeddings: int = Field(256, ge=16)
    """Longest context."""
    tie_word_embeddings: bool = True
    """Whether the output head is the embedding."""

    @model_validator(mode="after")
    def _shapes(self) -> TinyModelConfig:
        if self.experts_per_token > self.experts:
            raise ValueError("tiny: experts_per_token is at most experts")
        if self.hidden_size % self.heads or self.heads % self.kv_heads:
            raise ValueError("tiny: heads must divide hidden_size, and kv_heads must divide heads")
        if (self.hidden_size // self.heads) not in (32, 64, 80, 96, 112, 128, 192, 256):
            raise ValueError(
                f"tiny: the head dimension hidden_size / heads is {self.hidden_size // self.heads}; "
                "vLLM on a CPU takes 32, 64, 80, 96, 112, 128, 192 or 256"
            )
        return self

    @property
    def sees(self) -> bool:
        """Whether it has a tower for images."""
        return self.architecture == "qwen3_vl"

    @property
    def of_tower(self) -> dict[str, Any]:
        """The settings of its tower of two layers, which sees patches of 14 x 14 pixels."""
        return {
            "depth": 2,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_heads": self.heads,
            "out_hidden_size": self.hidden_size,
            "patch_size": PATCH_PIXELS,
            "spatial_merge_size": MERGED_PATCHES,
            "num_position_embeddings": LARGEST_IMAGE // PATCH_PIXELS**2,
            "deepstack_visual_indexes": [0],
        }

    @property
    def of_architecture(self) -> dict[str, Any]:
        """The settings that only this architecture has."""
        if self.architecture == "qwen3_moe":
            return {
                "num_experts": self.experts,
                "num_experts_per_tok": self.experts_per_token,
                "moe_intermediate_size": self.intermediate_size,
                "norm_topk_prob": True,
            }
        if self.architecture == "qwen3_5":
            heads = max(1, self.hidden_size // LINEAR_HEAD)
            return {
                "layer_types": [("linear_attention", "full_attention")[layer % 2] for layer in range(self.layers)],
                "linear_num_key_heads": heads,
                "linear_num_value_heads": heads,
                "linear_key_head_dim": LINEAR_HEAD,
                "linear_value_head_dim": LINEAR_HEAD,
            }
        if self.sees:
            half = self.hidden_size // self.heads // 2
            sections = [half - 2 * (half // 3), half // 3, half // 3]
            rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections, "mrope_interleaved": True}
            return {"rope_parameters": rope}
        return {}


class WarmupConfig(Config):
    """Supervised fine-tuning of a tiny model before RL, on demonstrations of the training task."""

    demonstrations: str
    """`module:function` `(count, seed, **arguments) -> conversations`: lists of `rlhf.types.Message`; the assistant's
    are imitated."""
    arguments: dict[str, Any] = Field({})
    """Keyword arguments of `demonstrations`; `count` and `seed` are the run's."""
    updates: int = Field(200, ge=1)
    """Optimizer steps."""
    batch_size: int = Field(64, ge=1)
    """Demonstrations a step."""
    learning_rate: float = Field(3e-3, gt=0)
    """Peak learning rate; decays linearly to zero."""

    @model_validator(mode="after")
    def _is_a_function(self) -> WarmupConfig:
        if not is_piece(self.demonstrations):
            raise ValueError(f"demonstrations is {self.demonstrations!r}; give module:function")
        if taken := sorted({"count", "seed"} & set(self.arguments)):
            raise ValueError(f"arguments has {' and '.join(taken)}, which the run sets itself; remove it")
        return self


class LoraConfig(Config):
    """Train low-rank adapters of frozen weights (arXiv 2106.09685): `W + alpha / rank * B A`, without dropout."""

    rank: int = Field(16, ge=1, le=512)
    """Inner dimension of an adapter."""
    alpha: int = Field(32, ge=1)
    """An adapter counts `alpha / rank` times."""
    target_modules: tuple[str, ...] = ()
    """Names of the linear layers that get adapters. If empty, all linear layers of the decoder get them, under any
    names. Experts that are stacked in one tensor, and routers, get none."""
    weight_sync: Literal["merged", "adapter"] = "merged"
    """What engines receive. `merged`: full weights with the adapters added, served at full speed. `adapter`: only the
    adapters, less data, exact in 16 bits too, but slower to serve. In 16 bits the default is `adapter`."""


class ModelConfig(Config):
    """The initial policy: a folder or hub name (`path`), or a `tiny` model that is made and cached."""

    alternatives: ClassVar = {"path": (), "tiny": ("warmup",)}
    path: str | None = None
    """A Hugging Face folder, or a name on the hub."""
    tiny: TinyModelConfig | None = None
    """Make this model if it is not in the cache."""
    warmup: WarmupConfig | None = None
    """Warm the tiny model up on demonstrations of the task before RL."""
    lora: LoraConfig | None = None
    """Train adapters instead of all weights."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the learner's forward pass and of the engine (master weights are float32)."""
    attention: Literal["auto", "sdpa", "eager"] = "auto"
    """Attention implementation of the learner; `auto` means `sdpa`, or `eager` for a model without it. On a GPU in 16
    bits `sdpa` is flash attention with variable lengths, shared prefixes included."""
    gradient_checkpointing: bool | int = Field(False, ge=0)
    """Recompute activations in the backward pass to save memory: `true` in every layer, a number n in every n-th, which
    takes more memory and less time."""
    offload_activations: bool = False
    """Keep what recomputing starts from, one hidden state a layer, in the machine's memory; needs
    `gradient_checkpointing`. For very long rows: it costs two copies between device and machine a layer."""
    tower: Literal["frozen", "trained"] | None = None
    """Show images to the model, through its vision tower: `frozen` keeps the tower and its projection as they are,
    `trained` trains them too. Without it a model that could see is trained on text, and engines load no tower."""
    trust_remote_code: bool = False
    """Allow a model folder to bring its own code."""
    loader: str | None = None
    """`module:function` of yours that loads the policy instead of `AutoModelForCausalLM.from_pretrained`, with the same
    arguments. The engines load `path` on their own: register a new architecture with vLLM too."""
    cache_dir: str = "~/.cache/rlhf/models"
    """Cache for made models, in folders named by a hash of what determines their weights."""

    @model_validator(mode="after")
    def _one_source(self) -> ModelConfig:
        if self.loader is not None and not is_piece(self.loader):
            raise ValueError(f"model.loader is {self.loader!r}; give module:function")
        if (self.path is None) == (self.tiny is None):
            raise ValueError("model: give exactly one of path (a folder or hub name) and tiny (a model to make)")
        if self.warmup and self.path:
            raise ValueError(
                "model.warmup: only a tiny model is warmed up; for a given model run a recipe of kind: sft first"
            )
        if self.tower == "trained" and self.lora:
            raise ValueError(
                "model.tower is trained, but model.lora trains adapters of the language part alone; set tower: frozen"
            )
        if self.tower and self.tiny and not self.tiny.sees:
            raise ValueError(f"model.tower: {self.tiny.architecture} has none; set tiny.architecture: qwen3_vl")
        if self.offload_activations and not self.gradient_checkpointing:
            raise ValueError(
                "model.offload_activations keeps what recomputing starts from: set model.gradient_checkpointing too"
            )
        return self

    @property
    def publishes_adapters(self) -> bool:
        """Whether engines receive LoRA adapters only, and no merged weights."""
        return self.lora is not None and self.lora.weight_sync == "adapter"
