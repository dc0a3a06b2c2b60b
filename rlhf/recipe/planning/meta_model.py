"""Measure a model's shape and the memory of its passes on the real modules, without allocating them.

transformers builds the modules on torch's meta device; the learner's passes (`rlhf.models.policy`,
`rlhf.models.attention`) run on fake tensors. Every storage that an operation makes is counted until it is freed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import cached_property
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel

from rlhf.models.attention import decoder_of
from rlhf.models.loading import DTYPES, ready_to_train
from rlhf.models.lora import linear_layers
from rlhf.models.model_files import UNNAMED_CONTEXT, Values, context_tokens
from rlhf.models.policy import row_arguments
from rlhf.models.torch_internals import FakeTensorMode, TorchDispatchMode, storage_key, tree_leaves
from rlhf.models.towers import auto_class
from rlhf.models.transformers_internals import attends_in_blocks
from rlhf.recipe.planning.shape import Activations, LinearBytes, ModelShape, head_line


def shape_of(name: str, values: Values) -> ModelShape:
    """Return the shape of the model with this `config.json`."""
    config = AutoConfig.for_model(**values)
    model = on_meta(config, "bfloat16")
    text = config.get_text_config()
    lists = [module for module in decoder_of(model).modules() if isinstance(module, nn.ModuleList)]
    layers = max(lists, key=lambda module: (_count(module.parameters()), len(module)))  # the decoder's layers
    kinds = text.per_layer_config if text.is_heterogeneous else [text]
    heads = int(getattr(text, "num_attention_heads", 0))  # Mamba has none
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return ModelShape(
        name=name,
        architecture=type(model).__name__,
        parameters=_count(model.parameters()),
        layers=len(layers),
        layer_parameters=max(_count(layer.parameters()) for layer in layers),
        largest_parameter=max(parameter.numel() for parameter in model.parameters()),
        head_parameters=_count(head.parameters()),
        adapter=sum(sum(model.get_parameter(f"{path}.weight").shape) for path, _ in linear_layers(model)),
        tied=head.weight is model.get_input_embeddings().weight,
        hidden_size=int(text.hidden_size),
        vocabulary=int(text.vocab_size),
        kv_heads=max(int(getattr(kind, "num_key_value_heads", None) or heads) for kind in kinds),
        head_size=max(int(getattr(kind, "head_dim", None) or text.hidden_size // max(heads, 1)) for kind in kinds),
        cached_layers=sum(
            "attention" in kind for kind in getattr(text, "layer_types", None) or ["attention"] * len(layers)
        ),
        context_tokens=context_tokens(text.to_dict()) or UNNAMED_CONTEXT,
    )


def activations_of(
    values: Values,
    *,
    dtype: str,
    checkpointing: bool,
    attention: str,
    lengths: tuple[int, int, int],
    tokens: int,
    memory: int | None = None,
) -> Activations:
    """Measure the memory of a forward and backward pass of about `tokens` tokens.

    `lengths` are the tokens of a prompt and of a reply, and the number of replies that share a prompt in a row;
    `memory` of the GPU decides the size of the head's chunks, None is a CPU."""
    config = AutoConfig.for_model(**values)
    unit = lengths[0] + lengths[1] * lengths[2]
    most = max(-(-tokens // unit), 2)
    points = {
        rows * unit: [
            _decoder_bytes(config, dtype, checkpointing, attention, lengths, rows * unit, deep) for deep in (1, 2)
        ]
        for rows in (most // 2, most)
    }
    layers = int(config.get_text_config().num_hidden_layers)
    saved, peak = (
        LinearBytes.through(*((at, one[which] + (layers - 1) * (two[which] - one[which]))
                       for at, (one, two) in points.items()))
        for which in (0, 1)
    )  # fmt: skip
    text = config.get_text_config()
    head = head_line(text.vocab_size, text.hidden_size, DTYPES[dtype].itemsize, memory)
    return Activations(saved=saved, decoder_peak=peak, head_peak=head)


def on_meta(config: Any, dtype: str, attention: str = "auto") -> PreTrainedModel:
    """Return the model without memory."""
    with init_empty_weights(include_buffers=True):
        chosen = {} if attention == "auto" else {"attn_implementation": attention}
        model: PreTrainedModel = auto_class(config).from_config(config, dtype=DTYPES[dtype], **chosen)
    return model


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that operations make, while they are alive."""

    def __init__(self, model: nn.Module) -> None:
        """Exclude the weights of `model`."""
        super().__init__()  # type: ignore[no-untyped-call]
        weights = [*model.parameters(), *model.buffers()]
        self._sizes = {storage_key(tensor): 0 for tensor in weights}
        self.now = self.peak = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Values | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._see(storage_key(tensor), tensor.untyped_storage())
        return made

    def _see(self, key: int, storage: Any) -> None:
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)


def _decoder_bytes(
    config: Any, dtype: str, checkpointing: bool, attention: str, lengths: tuple[int, int, int], tokens: int,
    layers: int,
) -> tuple[int, int]:  # fmt: skip
    """Measure the bytes that a decoder of `layers` layers saves for its backward pass, and the peak in that pass."""
    model = _shallow(config, dtype, attention, layers)
    ready_to_train(model, gradient_checkpointing=checkpointing)
    positions = packed_positions(tokens, lengths)
    packed = attends_in_blocks(model)  # other rows are planned as one sequence, for which a model needs no arguments
    arguments = row_arguments(model, positions) if packed else {}
    _settle(arguments.get("blocks"))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model = model.to_empty(device="cpu")
        for parameter in filter(lambda one: one.requires_grad, model.parameters()):
            # Its gradient is dropped: `processes` counts gradients as DeepSpeed keeps them.
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda weight: setattr(weight, "grad", None)
            )
        text = config.get_text_config().to_dict()
        with Alive(model) as alive:
            embedded = torch.empty((*positions.shape, text["hidden_size"]), dtype=model.dtype, requires_grad=True)
            if narrow := text.get("hidden_size_per_layer_input"):  # embeddings that each layer adds
                arguments["per_layer_inputs"] = torch.empty((*positions.shape, layers, narrow), dtype=model.dtype)
            if packed:
                arguments["position_ids"] = mode.from_tensor(positions)
            output = decoder_of(model)(inputs_embeds=embedded, use_cache=False, **arguments)
            saved = alive.now
            output.last_hidden_state.sum().backward()
    return saved, alive.peak


def _settle(lazy: object) -> None:
    """Compute cached properties of an object now, because fake tensors cannot."""
    for name, value in vars(type(lazy)).items():
        if isinstance(value, cached_property):
            getattr(lazy, name)


def packed_positions(tokens: int, lengths: tuple[int, int, int]) -> Tensor:
    """Return positions `[1, tokens]` of rows as the learner packs them: a prompt and its replies in sequence."""
    prompt, reply, replies = lengths
    group = [torch.arange(prompt + reply), *(torch.arange(prompt, prompt + reply) for _ in range(replies - 1))]
    unit = torch.cat(group)
    return unit.repeat(-(-tokens // len(unit)))[:tokens][None]


def _shallow(config: Any, dtype: str, attention: str, layers: int) -> PreTrainedModel:
    config = deepcopy(config)
    text = config.get_text_config()
    if vars(text).get("layer_types"):
        # Include a layer of the costliest kind, full attention.
        text.layer_types = sorted(text.layer_types)[:layers]
    text.num_hidden_layers = layers
    return on_meta(config, dtype, attention)


def _count(parameters: Iterable[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)
