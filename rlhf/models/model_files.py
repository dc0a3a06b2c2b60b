"""Read and check the files of a Hugging Face model folder, without torch or transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from rlhf.errors import ModelError

Values = dict[str, Any]
CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")
"""Names in configurations of the longest context."""
UNNAMED_CONTEXT = 2048
"""The context of a model that names none, as ALiBi needs none: the same as vLLM's."""


def read_json_object(file: Path) -> Values:
    """Return the JSON object in `file`; an empty one if the file does not exist. Raises `ModelError`."""
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"{file} cannot be read as JSON ({why}); download the model again") from None
    if not isinstance(loaded, dict):
        raise ModelError(f"{file} is not a JSON object; download the model again")
    return loaded


def family_of(path: str) -> str:
    """Return the family of a model by its folder, and of a hub name that name."""
    return str(read_json_object(Path(path).expanduser() / "config.json").get("model_type", path))


def text_config(config: Values) -> Values:
    """Return the language model's part of a `config.json`, which multimodal models nest."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def context_tokens(config: Values) -> int | None:
    """Return the maximum context of a model from its `config.json`; None if it is absent."""
    limits = [text_config(config).get(name) for name in CONTEXT]
    return next((limit for limit in limits if isinstance(limit, int)), None)


Shapes = Mapping[str, tuple[int, ...]]
"""Tensor shapes by tensor name."""
SAFETENSORS, PICKLES = "model.safetensors", "pytorch_model.bin"


def tensor_shapes(folder: Path) -> Shapes | None:
    """Return the shapes of all tensors that transformers would load from `folder`. None if it has only `.bin` files,
    which need torch. Raises `ModelError` for a folder without weights, and for missing or damaged files."""
    named = read_json_object(folder / "config.json").get("transformers_weights")
    for name in (named, SAFETENSORS, f"{SAFETENSORS}.index.json", PICKLES, f"{PICKLES}.index.json"):
        if isinstance(name, str) and (folder / name).exists():
            if ".bin" in name:
                return None
            files = _parts(folder / name) if name.endswith(".json") else [folder / name]
            return {tensor: shape for file in files for tensor, shape in _shapes(file).items()}
    raise ModelError(
        f"{folder} has no weights ({SAFETENSORS}, {PICKLES}, or the .index.json of several such files); "
        f"{held_instead(folder) or 'model.path must be a whole model folder'}"
    )


def refuse_adapters(folder: Path, key: str) -> None:
    """Raise `ModelError` for LoRA adapters in the model folder, which transformers adds and engines do not."""
    for file in (*folder.glob("adapter_config.json"), *folder.glob("adapter_model.*")):
        raise ModelError(
            f"{key}={folder} holds both a model and LoRA adapters ({file.name}): for the model alone, move "
            "adapter_config.json and adapter_model.* out of the folder; for both, merge the adapters into the model "
            "(merge_and_unload of peft), and save it in another folder"
        )


def held_instead(folder: Path) -> str:
    """Describe an incomplete model folder, and what to do with it; empty if unknown."""
    if (folder / "adapter_config.json").exists():
        base = read_json_object(folder / "adapter_config.json").get("base_model_name_or_path")
        return f"it holds LoRA adapters of {base}: merge them into that model (merge_and_unload of peft), and save it"
    if any(folder.glob("*.gguf")):
        return "it holds GGUF files, which cannot be trained: take the safetensors files that they were made from"
    return ""


def parameters(shapes: Shapes) -> int:
    """Count the weights; tied weights are stored, and so counted, once."""
    return sum(prod(shape) for shape in shapes.values())


def _parts(index: Path) -> list[Path]:
    files = read_json_object(index).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise ModelError(f"{index} has no weight_map; download the model again")
    return [index.parent / str(name) for name in sorted(set(files.values()))]


def _shapes(file: Path) -> Shapes:
    try:
        with safe_open(file, framework="np") as content:
            return {name: tuple(content.get_slice(name).get_shape()) for name in content.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ModelError(f"{file} is missing, but the index names it; download the model again") from None
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error}") from None
    except SafetensorError as error:
        raise ModelError(f"{file} is not a whole safetensors file ({error}); download the model again") from None


EMBEDDINGS = ("embed_tokens", "wte", "embed_in", "word_embeddings", "tok_embeddings", "embeddings", "embedding")
"""Names of the token embedding in various architectures."""
HEADS = ("lm_head.weight", "embed_out.weight")
"""Names of the head, in models where it is not tied to the embedding."""
WIDTHS = (
    "word_embed_proj_dim", "input_embedding_size", "embedding_size", "hidden_size", "n_embd", "n_embed", "d_model",
)  # fmt: skip
"""Names of the embedding width in configurations; the first one present is used."""
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
LAYER = r"(?:layers|h|blocks)\.(\d+)\."
UNCOUNTED = re.compile("mtp|nextn")
"""Layers for multi-token prediction. Some checkpoints have them after the counted layers."""
REMEDY = "take config.json and weights of the same model"


def embedding_rows(shapes: Shapes) -> int | None:
    """Return the number of rows of the embedding; None if it is not found."""
    name = _embedding(shapes)
    return shapes[name][0] if name else None


def check_dimensions(folder: Path, config: Values, shapes: Shapes) -> None:
    """Raise `ModelError` naming a difference. Values that `config` or the files do not have are skipped."""
    name, text = _embedding(shapes), text_config(config)
    if name is None:
        return
    rows, columns = shapes[name]
    width = _first(WIDTHS, text)
    # Some embeddings have more rows than there are tokens to predict; the head has one row for each of those.
    sizes = {rows, *(shapes[head][0] for head in shapes if head.endswith(HEADS))}
    for key, found in (("vocab_size", sizes), (width, {columns})):
        size = text.get(key)
        if isinstance(size, int) and size not in found:
            raise ModelError(
                f"{folder}: its weights do not fit its config.json: {name} is {rows} x {columns}, and {key} is "
                f"{size}; {REMEDY}"
            )
    key, above = _first(DEPTHS, text), "".join(f"{part}." for part in name.split(".")[:-2])
    layer = re.compile(re.escape(above) + LAYER)
    layers = 1 + max((int(match[1]) for match in map(layer.match, shapes) if match), default=-1)
    depth = text.get(key)
    if not layers or not isinstance(depth, int):
        return
    more_are_known = any(UNCOUNTED.search(name) for name in (*config, *text))
    if layers < depth or (layers > depth and not more_are_known):
        raise ModelError(
            f"{folder}: its weights do not fit its config.json: they have {layers} layers, and {key} is {depth}; "
            f"{REMEDY}"
        )


def _embedding(shapes: Shapes) -> str | None:
    """Return the name of the token embedding, if there is exactly one."""
    for called in EMBEDDINGS:
        found = [name for name in shapes if f".{name}".endswith(f".{called}.weight") and len(shapes[name]) == 2]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _first(keys: tuple[str, ...], values: Values) -> str:
    return next((key for key in keys if isinstance(values.get(key), int)), keys[0])


TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
CONFIG, TEMPLATE, MORE_TEMPLATES, OF_A_PROCESSOR = (
    "tokenizer_config.json", "chat_template.jinja", "additional_chat_templates/*.jinja", "chat_template.json",
)  # fmt: skip
GENERATION = "generation_config.json"
NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
PLACEHOLDERS = ("image_token", "audio_token", "video_token")
"""Placeholders for images, audio and video. Text models may keep those of larger relatives, beyond their embedding."""


def check_tokenizer(folder: Path) -> None:
    """Raise `ModelError` for a folder without a tokenizer."""
    if not any((folder / name).exists() for name in TOKENIZERS):
        raise ModelError(
            f"{folder} has no tokenizer ({', '.join(TOKENIZERS)}); model.path must be a whole model folder"
        )


def check_vocabulary(folder: Path, rows: int) -> None:
    """Raise `ModelError` for a token whose id has no row in an embedding of `rows`."""
    config = read_json_object(folder / CONFIG)
    extra = config.get("extra_special_tokens")
    described = (config, extra if isinstance(extra, dict) else {})
    placeholders = {_content(values.get(key)) for values in described for key in PLACEHOLDERS}
    try:
        ids = {token: index for token, index in _tokens(folder, config).items() if token not in placeholders}
    except (KeyError, TypeError, AttributeError, ValueError, IndexError):
        raise ModelError(
            f"{folder}: its tokenizer's files are not in a saved tokenizer's form; download it again"
        ) from None
    token = max(ids, key=ids.__getitem__, default=None)
    if token is not None and ids[token] >= rows:
        raise ModelError(
            f"{folder}: its tokenizer gives {token!r} the id {ids[token]}, and the embedding has {rows} rows, 0 to "
            f"{rows - 1}; take the model's own tokenizer, or enlarge the embedding (resize_token_embeddings)"
        )


def check_generation(folder: Path) -> None:
    """Raise `ModelError` for a `generation_config.json` that is not a JSON object, or whose token ids are not
    numbers."""
    for name, given in read_json_object(folder / GENERATION).items():
        ids = given if isinstance(given, list) else [given]
        if name.endswith("_token_id") and given is not None and any(type(one) is not int for one in ids):
            raise ModelError(
                f"{folder / GENERATION}: {name} is {given!r}; it must be the number of a token, or several"
            )


def check_template(folder: Path) -> None:
    """Raise `ModelError` for a tokenizer that cannot render a conversation."""
    template = folder / TEMPLATE
    given = [
        read_json_object(folder / CONFIG).get("chat_template"),
        template.exists() and template.read_bytes().strip(),
    ]
    if any(given) or any(folder.glob(MORE_TEMPLATES)):
        return
    if (folder / OF_A_PROCESSOR).exists():
        raise ModelError(
            f"{folder}: its tokenizer has no chat template; the one in {OF_A_PROCESSOR} is read by processors of "
            f"pictures alone: write it into {TEMPLATE}"
        )
    raise ModelError(
        f"{folder}: its tokenizer has no chat template ({TEMPLATE}, or chat_template in {CONFIG}); use an "
        "instruction-tuned model, or add a template"
    )


def _tokens(folder: Path, config: Values) -> dict[str, int]:
    """Ids by token."""
    whole = read_json_object(folder / "tokenizer.json")
    if not whole:
        added = {_content(one): int(index) for index, one in config.get("added_tokens_decoder", {}).items()}
        return read_json_object(folder / "vocab.json") | read_json_object(folder / "added_tokens.json") | added
    vocabulary = whole.get("model", {}).get("vocab", {})
    found = dict(vocabulary) if isinstance(vocabulary, dict) else {one[0]: at for at, one in enumerate(vocabulary)}
    found |= {token["content"]: token["id"] for token in whole.get("added_tokens", ())}
    # Further tokens in the configuration are appended, and their ids there are ignored.
    more = [token for token in dict.fromkeys(_named(config)) if token and token not in found]
    return found | {token: len(found) + at for at, token in enumerate(more)}


def _named(config: Values) -> Iterator[str]:
    """Tokens that `tokenizer_config.json` names."""
    yield from map(_content, config.get("added_tokens_decoder", {}).values())
    yield from (_content(config.get(key)) for key in NAMED)
    extra = config.get("extra_special_tokens") or ()
    yield from map(_content, extra.values() if isinstance(extra, dict) else extra)


def _content(token: Any) -> str:
    """Return a token's text: the string itself, or `content` of an object; empty if there is none."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""
