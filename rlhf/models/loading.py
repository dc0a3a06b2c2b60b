"""Loads a policy from a Hugging Face folder or hub name. Every problem is a `ModelError` of one line."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging
from transformers.utils.logging import disable_progress_bar
from transformers.utils.peft_utils import find_adapter_config_file

from rlhf.config import load_piece
from rlhf.errors import ModelError, Raised, catch
from rlhf.models.failures import cause_of, concerns_model, naming_model
from rlhf.models.model_files import refuse_adapters
from rlhf.models.model_types import check_precision
from rlhf.models.sharded_loading import Sharding, pretrained
from rlhf.models.towers import auto_class, towers
from rlhf.models.transformers_internals import checkpoint_by

disable_progress_bar()  # type: ignore[no-untyped-call]
LIBRARY = f"transformers {transformers.__version__}"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_config(path: str, *, trust_remote_code: bool = False, setting: str = "model.path") -> Any:
    """Return the model's own configuration. Raises `ModelError`; `setting` is the recipe key of its path or name."""
    _check_folder(path, setting)
    with naming_model(f"{setting}={path}: {LIBRARY} cannot read its config.json", OSError):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        adapters = find_adapter_config_file(path)
    if adapters is not None:
        refuse_adapters(Path(adapters).parent, setting)
    check_precision(path, config.to_dict(), setting)
    return config


def declared_ends(path: str, *, trust_remote_code: bool = False) -> tuple[int, ...]:
    """Return the end-of-reply tokens in the model's `generation_config.json`. Raises `ModelError`."""
    found = read_generation(path, trust_remote_code=trust_remote_code)
    ends = found.eos_token_id if found else None
    return () if ends is None else tuple(ends) if isinstance(ends, list) else (ends,)


def read_generation(path: str, **settings: Any) -> GenerationConfig | None:
    """Return the model's settings for generation; None without their file. Raises `ModelError`."""
    with naming_model(f"model.path={path}: {LIBRARY} cannot read its generation_config.json"), quiet():
        try:
            return GenerationConfig.from_pretrained(path, **settings)
        except OSError:
            return None


def unsaved_settings(path: str) -> list[str]:
    """Return the names of what exports leave out (`savable`). Raises `ModelError`."""
    older = {"config_file_name": "config.json", "_from_model_config": True}  # where older models have the settings
    found = read_generation(path) or read_generation(path, **older)
    return savable(found)[1] if found else []


def savable(settings: GenerationConfig) -> tuple[GenerationConfig, list[str]]:
    """Return the settings for generation that transformers writes to a file, and the names of those that it refuses,
    such as a temperature without `do_sample`: training needs none of them."""

    def is_saved(values: dict[str, Any]) -> bool:
        made = catch(lambda: GenerationConfig(**values).validate(strict=True))  # type: ignore[no-untyped-call]
        return not isinstance(made, Raised)

    kept: dict[str, Any] = {}
    values = settings.to_diff_dict()
    with quiet():
        if is_saved(values):
            return settings, []
        for name in sorted(values):  # `do_sample` comes before what depends on it
            kept |= {name: values[name]} if is_saved({**kept, name: values[name]}) else {}
    return GenerationConfig(**kept), sorted(set(values) - set(kept))  # type: ignore[no-untyped-call]


def load_policy(
    path: str,
    *,
    dtype: str = "float32",
    attention: str = "auto",
    gradient_checkpointing: int = 0,
    offload_activations: bool = False,
    trust_remote_code: bool = False,
    loader: str | None = None,
    sharding: Sharding | None = None,
    trains_tower: bool = False,
) -> PreTrainedModel:
    """Return a causal LM ready for training: without dropout, so that its log-probs are those of the policy that
    sampled. The user's own `loader` replaces `from_pretrained`; otherwise a `sharding` loads it in shards."""
    config = load_config(path, trust_remote_code=trust_remote_code)
    load = load_piece(loader, "model.loader") if loader else partial(load_whole, sharding=sharding)
    with loading_model("model.path", path, config, loader or LIBRARY):
        model: PreTrainedModel = load(
            path,
            config=without_dropout(config),
            dtype=DTYPES[dtype],
            attn_implementation=None if attention == "auto" else attention,
            trust_remote_code=trust_remote_code,
        )
    if model.can_generate():
        model.generation_config, _ = savable(read_generation(path) or model.generation_config)
    ready_to_train(
        model,
        gradient_checkpointing=gradient_checkpointing,
        offload_activations=offload_activations,
        trains_tower=trains_tower,
    )
    return model


def sharing_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of the modules over the same parameters and buffers: adapters of one leave the other as it is."""
    return copy.deepcopy(model, {id(shared): shared for shared in (*model.parameters(), *model.buffers())})


def loading_model(setting: str, path: str, config: Any, loader: str = LIBRARY) -> AbstractContextManager[None]:
    """Raise `ModelError` where `loader` cannot load the weights of a model."""
    return naming_model(f"{setting}={path}: {loader} cannot load {config.model_type}", OSError, SafetensorError)


def without_dropout(config: Any) -> Any:
    """Return a model's configuration with every dropout rate set to 0."""
    own = config.get_text_config()
    for name, value in own.to_dict().items():
        if isinstance(value, float) and ("dropout" in name or name.endswith("_pdrop")):
            setattr(own, name, 0.0)
    return config


def ready_to_train(
    model: PreTrainedModel,
    *,
    gradient_checkpointing: int = 0,
    offload_activations: bool = False,
    trains_tower: bool = False,
) -> None:
    """Turn off randomness in the forward pass (dropout, router noise), because log-probs must be those of the policy
    that sampled. Modules are in evaluation mode; gradients are still computed. Of every `gradient_checkpointing` layers
    one is recomputed in the backward pass (0: none), from a hidden state that may be offloaded."""
    model.eval()  # type: ignore[no-untyped-call]
    for tower in towers(model):
        tower.requires_grad_(trains_tower)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False}, every_n_layers=int(gradient_checkpointing)
        )
        for module in model.modules():  # layers recompute only in training mode; their submodules stay in evaluation
            module.training = vars(module).get("gradient_checkpointing", False)
            if offload_activations and module.training:
                checkpoint_by(module, _from_machine_memory)


def _from_machine_memory(checkpoint: Any, *arguments: Any, **named: Any) -> Any:
    """Compute a layer, again in the backward pass, from a hidden state that waits in the machine's memory until then.
    Replaces transformers' own `offload`, which pins memory even without a device, and fails."""
    with torch.autograd.graph.save_on_cpu(pin_memory=torch.accelerator.is_available()):
        return checkpoint(*arguments, **named)


def load_tokenizer(path: str, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Return the model's tokenizer. Raises `ModelError` when the folder has none or it has no chat template."""
    tokenizer = bare_tokenizer(path, trust_remote_code=trust_remote_code)
    if not tokenizer.chat_template:
        raise ModelError(f"model.path={path}: its tokenizer has no chat template; use an instruction-tuned model")
    return tokenizer


def bare_tokenizer(
    path: str, *, trust_remote_code: bool = False, setting: str = "model.path"
) -> PreTrainedTokenizerBase:
    """Return a tokenizer that may lack a chat template. Raises `ModelError` when the folder has none."""
    _check_folder(path, setting)
    # The Rust code of tokenizers raises plain exceptions.
    tokenizer = catch(lambda: AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code))
    if not isinstance(tokenizer, Raised):
        return cast(PreTrainedTokenizerBase, tokenizer)
    if not concerns_model(tokenizer.error):
        raise tokenizer.error
    raise ModelError(f"{setting}={path}: no tokenizer: {cause_of(tokenizer.error)}") from tokenizer.error


def _check_folder(path: str, setting: str) -> None:
    folder = Path(path).expanduser()
    looks_local = path.startswith((".", "/", "~")) or path.count("/") != 1
    if not folder.exists():
        if looks_local and "/" in path:
            raise ModelError(f"{setting}={path}: there is no such folder")
        return
    if not (folder / "config.json").is_file():
        raise ModelError(f"{setting}={path} is not a Hugging Face model folder: it has no config.json")


def load_whole(path: str, *, sharding: Sharding | None = None, **settings: Any) -> PreTrainedModel:
    """Return a causal LM, loaded with the `settings` of `from_pretrained`, whole or in the shards of a `sharding`.
    Raises `ModelError` naming a missing or mismatched weight: transformers would draw it at random."""
    with quiet():
        model, found = pretrained(
            auto_class(settings["config"]), path, sharding, ignore_mismatched_sizes=True, **settings
        )
    for name, there, needed in sorted(found["mismatched_keys"])[:1]:
        raise ModelError(
            f"model.path={path}: its weights do not fit its config.json: {name} is {by(there)}, and {by(needed)} by "
            "config.json; take config.json and weights of the same model"
        )
    check_none_missing(path, set(found["missing_keys"]))
    return model


def by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def check_none_missing(path: str, missing: set[str], setting: str = "model.path") -> None:
    """Raise `ModelError` naming one of the weights that the folder named by `setting` lacks."""
    if missing:
        raise ModelError(f"{setting}={path} has no weights for {min(missing)}; it is not a whole model folder")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' reports of missing and random weights: here these are intended, or raise an error."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(before)
