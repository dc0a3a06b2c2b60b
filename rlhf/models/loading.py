"""Bring a policy from a Hugging Face folder or hub name. Whatever is wrong with it is a `ModelError` of one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from rlhf.errors import ModelError

disable_progress_bar()  # type: ignore[no-untyped-call]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_config(path: str, *, trust_remote_code: bool = False) -> Any:
    """The model's own configuration. Raises `ModelError` for a path or name that is not a model."""
    _check_folder(path)
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model.path={path}: {_first_line(error)}") from None


def context_length(path: str, *, trust_remote_code: bool = False) -> int:
    """Tokens the model can attend to, prompt and reply together."""
    config = load_config(path, trust_remote_code=trust_remote_code)
    try:
        return int(config.get_text_config().max_position_embeddings)
    except AttributeError:
        raise ModelError(f"model.path={path}: its config.json gives no max_position_embeddings") from None


def load_policy(
    path: str,
    *,
    dtype: str = "float32",
    attention: str = "sdpa",
    gradient_checkpointing: bool = False,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """A causal LM ready for training: no dropout, so that its log-probs are those of the policy that sampled."""
    config = load_config(path, trust_remote_code=trust_remote_code)
    _refuse_unknown_heads(path, config)
    if "attention_dropout" in config.to_dict():
        config.attention_dropout = 0.0
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=DTYPES[dtype], attn_implementation=attention, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, ImportError) as error:
        raise ModelError(f"model.path={path}: {_first_line(error)}") from None
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    return model


def load_tokenizer(path: str, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The model's tokenizer. Raises `ModelError` when the folder has none or it has no chat template."""
    _check_folder(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model.path={path}: no tokenizer: {_first_line(error)}") from None
    if not tokenizer.chat_template:
        raise ModelError(f"model.path={path}: its tokenizer has no chat template; use an instruction-tuned model")
    return tokenizer


def _check_folder(path: str) -> None:
    folder = Path(path).expanduser()
    looks_local = path.startswith((".", "/", "~")) or path.count("/") != 1
    if not folder.exists():
        if looks_local and "/" in path:
            raise ModelError(f"model.path={path}: there is no such folder")
        return
    if not (folder / "config.json").is_file():
        raise ModelError(f"model.path={path} is not a Hugging Face model folder: it has no config.json")


def _refuse_unknown_heads(path: str, config: Any) -> None:
    if config.to_dict().get("final_logit_softcapping"):
        raise ModelError(f"model.path={path}: models that cap their logits (final_logit_softcapping) are not supported")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
