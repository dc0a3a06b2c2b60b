"""Reads the tokens and the chat template from a folder's tokenizer files, without transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhf.errors import ModelError
from rlhf.models.folder import Values, read_json_object

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
CONFIG, TEMPLATE, MORE_TEMPLATES, OF_A_PROCESSOR = (
    "tokenizer_config.json", "chat_template.jinja", "additional_chat_templates/*.jinja", "chat_template.json",
)  # fmt: skip
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
    placeholders = {_content(values.get(key)) for values in (config, _extra(config)) for key in PLACEHOLDERS}
    try:
        ids = {token: index for token, index in _tokens(folder, config).items() if token not in placeholders}
    except (KeyError, TypeError, AttributeError, ValueError, IndexError):
        raise ModelError(f"{folder}: the files of its tokenizer are not as one is saved; download it again") from None
    token = max(ids, key=ids.__getitem__, default=None)
    if token is not None and ids[token] >= rows:
        raise ModelError(
            f"{folder}: its tokenizer gives {token!r} the id {ids[token]}, and the embedding has {rows} rows, 0 to "
            f"{rows - 1}; take the model's own tokenizer, or enlarge the embedding (resize_token_embeddings)"
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


def _extra(config: Values) -> Values:
    extra = config.get("extra_special_tokens")
    return extra if isinstance(extra, dict) else {}


def _content(token: Any) -> str:
    """Return a token's text: the string itself, or `content` of an object; empty if there is none."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""
