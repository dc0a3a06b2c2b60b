"""A model with a scalar output per token: the critic's value or the reward model's score. On disk it is a
sequence-classification model with one label; one is made here for families for which transformers has none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_MAPPING,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)
from transformers.modeling_layers import GenericForSequenceClassification

from rlhf.errors import ModelError
from rlhf.images import RowImages
from rlhf.models.deepspeed_internals import local_part
from rlhf.models.loading import (
    DTYPES,
    bare_tokenizer,
    check_none_missing,
    load_config,
    loading_model,
    quiet,
    ready_to_train,
    without_dropout,
)
from rlhf.models.policy import RowForward, WholeRows
from rlhf.models.sharded_loading import Sharding, pretrained

CLASSIFIER = "ForSequenceClassification"
HEAD = "score"
"""transformers' name of a decoder's head for sequence classification."""


class ScalarHead(nn.Module):
    """A sequence-classification model with one label; the head is inside `forward`, where ZeRO-3 gathers it."""

    def __init__(self, model: PreTrainedModel, rows: RowForward | None = None) -> None:
        super().__init__()
        self.model, self.rows = model, rows or WholeRows()

    def forward(
        self, token_ids: Tensor, position_ids: Tensor, places: Tensor, *, images: RowImages | None = None
    ) -> Tensor:
        """Return the head's values `float32 [A]` at the flat positions `places` `int64 [A]` of `token_ids` `[R, L]`,
        packed as for `PolicyModel`, each for its sequence up to and including that token."""
        held, hidden = self.rows.hidden(self.model, token_ids, position_ids, places, images)
        # Without places this is empty but depends on every weight, as padding must: see `PolicyModel.forward`.
        numbers: Tensor = self.model.get_submodule(HEAD)(hidden)
        return self.rows.joined(numbers[:, 0].float(), held)


def load_scalar(
    path: str,
    *,
    dtype: str = "float32",
    attention: str = "auto",
    gradient_checkpointing: int = 0,
    offload_activations: bool = False,
    trust_remote_code: bool = False,
    fresh_head: bool = False,
    setting: str = "model.path",
    sharding: Sharding | None = None,
    trains_tower: bool = False,
) -> PreTrainedModel:
    """Return a sequence-classification model with one label, ready for training and without dropout. With `fresh_head`
    any language model's folder can be used, and the new head is exactly zero. Otherwise `ModelError` says what the
    folder holds if it is not such a model. With a `sharding` it is loaded in shards."""
    config = load_config(path, trust_remote_code=trust_remote_code, setting=setting)
    if fresh_head:
        config.num_labels = 1
    else:
        _check_is_scalar(path, config, setting)
    add_classifier(config)
    with quiet(), loading_model(setting, path, config):
        model, found = pretrained(
            AutoModelForSequenceClassification,
            path,
            sharding,
            config=without_dropout(config),
            dtype=DTYPES[dtype],
            attn_implementation=None if attention == "auto" else attention,
            trust_remote_code=trust_remote_code,
            ignore_mismatched_sizes=fresh_head,  # also leaves out a head of several labels
        )
    head = dict(model.named_children()).get(HEAD)
    if not isinstance(head, nn.Linear):
        raise ModelError(f"{setting}={path}: {type(model).__name__} has no linear layer {HEAD!r} as its head")
    check_none_missing(path, set(found["missing_keys"]) - ({f"{HEAD}.weight"} if fresh_head else set()), setting)
    if fresh_head:
        with torch.no_grad():
            local_part(head.weight).zero_()
        tokenizer = bare_tokenizer(path, trust_remote_code=trust_remote_code, setting=setting)
        pad_alike(model, tokenizer)
    ready_to_train(
        model,
        gradient_checkpointing=gradient_checkpointing,
        offload_activations=offload_activations,
        trains_tower=trains_tower,
    )
    return model


def add_classifier(config: Any) -> None:
    """Make and register a sequence-classification model for the family of `config` if transformers has none: the base
    model with a linear head, under the name that transformers would give it."""
    kind = type(config)
    if kind in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING or kind not in MODEL_MAPPING:
        return
    base: Any = MODEL_MAPPING[kind]
    family = next(parent for parent in base.__mro__[1:] if issubclass(parent, PreTrainedModel))
    settings = {
        "base_model_prefix": family.base_model_prefix or "model",  # Llama 4 names none
        "config_class": kind,
        "__module__": base.__module__,  # transformers reads there which attention the family supports
    }
    name = family.__name__.replace("PreTrainedModel", CLASSIFIER)
    classifier = type(name, (GenericForSequenceClassification, family), settings)
    AutoModelForSequenceClassification.register(kind, classifier, exist_ok=True)


def check_same_vocabulary(
    policy_path: str, scalar_path: str, *, trust_remote_code: bool = False, setting: str = "reward.model"
) -> None:
    """Check that every token id of the policy means the same to the scalar model, which may have more tokens: the two
    exchange token ids. Raises `ModelError` naming the first difference."""
    policy = bare_tokenizer(policy_path, trust_remote_code=trust_remote_code).get_vocab()
    scalar = bare_tokenizer(scalar_path, trust_remote_code=trust_remote_code, setting=setting).get_vocab()
    for token, index in sorted(policy.items(), key=lambda item: item[1]):
        if scalar.get(token) != index:
            there = f"{scalar[token]} there" if token in scalar else "not there"
            raise ModelError(
                f"{setting}={scalar_path} has another vocabulary than the policy {policy_path}: token {token!r} is "
                f"{index} here and {there}; both need the same tokenizer"
            )


def is_scalar(path: str, *, trust_remote_code: bool = False, setting: str = "model.path") -> bool:
    """Whether the folder has a head that gives one value per token."""
    config = load_config(path, trust_remote_code=trust_remote_code, setting=setting)
    return any(kind.endswith(CLASSIFIER) for kind in config.architectures or []) and config.num_labels == 1


def padding_id(tokenizer: Any) -> int | None:
    """Return a token that ends no sequence: the padding token, else another special token, else `None`. `transformers`
    takes a sequence's last token that is not padding; many models pad with their end-of-sequence token."""
    candidates = (tokenizer.pad_token_id, *tokenizer.all_special_ids)
    taken = (None, tokenizer.eos_token_id, tokenizer.bos_token_id)
    return next((int(index) for index in candidates if index not in taken), None)


def pad_alike(model: PreTrainedModel, tokenizer: Any) -> None:
    """Have a scalar model and its tokenizer pad with the same token, which ends no sequence: transformers scores a
    sequence of a batch at its last token that is not the model's padding."""
    index = padding_id(tokenizer)
    model.config.get_text_config().pad_token_id = index
    if index is not None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(index)


def _check_is_scalar(path: str, config: Any, setting: str) -> None:
    kinds = config.architectures or ["model of unknown kind"]
    if not any(kind.endswith(CLASSIFIER) for kind in kinds):
        raise ModelError(
            f"{setting}={path} is a {kinds[0]}, not a sequence-classification model; train one with kind: reward_model"
        )
    if config.num_labels != 1:
        raise ModelError(f"{setting}={path} has {config.num_labels} labels (num_labels), but a score needs exactly 1")
