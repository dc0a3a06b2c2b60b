"""Find the tokens that end a reply: the first special or added token that the chat template writes after one
(`<end_of_turn>` of Gemma, `<|im_end|>` of Qwen), the tokenizer's end-of-sequence token, and the ends in the model's
`generation_config.json`, except ordinary text: otherwise a file could cut replies at any word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rlhf.chat.templates import NONE, ChatTokenizer, prompt_text
from rlhf.chat.thinking import MARK
from rlhf.errors import ModelError
from rlhf.types import Message

ASKED_AND_ANSWERED = (
    Message(role="user", content="placeholder question"),
    Message(role="assistant", content="placeholder reply"),
)

SYSTEM = Message(role="system", content="placeholder rules")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    """`token_id` ends a demonstrated reply, None if no such token is known; a sampled reply ends at any of `token_ids`.
    `told` are notes for the user: where template, tokenizer and `generation_config.json` disagree."""

    token_id: int | None
    token_ids: tuple[int, ...]
    told: tuple[str, ...] = ()


def turn_end(tokenizer: ChatTokenizer, arguments: Mapping[str, Any] = NONE, declared: Sequence[int] = ()) -> TurnEnd:
    """Return the end-of-turn tokens for this tokenizer. `arguments` are the template's arguments other than the
    messages, `declared` the ends in the model's `generation_config.json`."""
    marks = mark_tokens(tokenizer)
    written, end_of_sequence = _written(tokenizer, arguments, marks), tokenizer.eos_token_id
    candidates = (written, end_of_sequence, *(token for token in declared if token in marks))
    ends = tuple(dict.fromkeys(token for token in candidates if token is not None))
    return TurnEnd(
        token_id=ends[0] if ends else None,
        token_ids=ends,
        told=tuple(_told(tokenizer, written, ends, [token for token in declared if token not in marks])),
    )


def end_of_reply(tokenizer: ChatTokenizer, arguments: Mapping[str, Any] = NONE) -> int:
    """Return the token that ends a demonstrated reply. Raises `ModelError` if there is none."""
    end = turn_end(tokenizer, arguments).token_id
    if end is None:
        raise ModelError(
            "the chat template writes no token at the end of a reply, and the tokenizer has no end-of-sequence token: "
            "a response could never end; use a model with either"
        )
    return end


def mark_text(tokenizer: ChatTokenizer, token: int) -> str:
    """Return a special token's text as templates write it; sentencepiece would decode `▁` within it as a space."""
    added = tokenizer.added_tokens_decoder
    return str(added[token].content if token in added else tokenizer.decode([token], skip_special_tokens=False))


def with_reply(tokenizer: ChatTokenizer, arguments: Mapping[str, Any] = NONE) -> str:
    """Return a conversation that ends with a reply, as the template renders it. Raises `ModelError`."""
    return prompt_text(tokenizer, ASKED_AND_ANSWERED, {**arguments, "add_generation_prompt": False})


def mark_tokens(tokenizer: ChatTokenizer) -> frozenset[int]:
    """Return the tokens that are not ordinary text: special tokens, and those added to the vocabulary."""
    return frozenset((*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder))


def frame_tokens(tokenizer: ChatTokenizer, arguments: Mapping[str, Any] = NONE) -> frozenset[int]:
    """Return the special tokens that frame a turn: beginning, end, padding, and those that the template writes around a
    plain conversation. All others, including marks of thinking, are part of a reply's text."""
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    special.update(tokenizer.all_special_ids)
    written: set[int | None] = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    for messages in (ASKED_AND_ANSWERED, (SYSTEM, *ASKED_AND_ANSWERED)):
        with suppress(ModelError):  # some templates accept no system message
            text = prompt_text(tokenizer, messages, {**arguments, "add_generation_prompt": False})
            written.update(tokenizer.encode(text, add_special_tokens=False))
    return frozenset(token for token in special & written if not MARK.fullmatch(mark_text(tokenizer, token)))


def _written(tokenizer: ChatTokenizer, arguments: Mapping[str, Any], marks: frozenset[int]) -> int | None:
    """Return the first special token after a reply; None if there is none, or if the template leaves replies out."""
    try:
        rendered = with_reply(tokenizer, arguments)
    except ModelError:
        return None
    _, found, tail = rendered.rpartition(ASKED_AND_ANSWERED[-1].content)
    behind = tokenizer.encode(tail, add_special_tokens=False) if found else ()
    return next((int(token) for token in behind if token in marks), None)


def _told(tokenizer: ChatTokenizer, written: int | None, ends: Sequence[int], ordinary: Sequence[int]) -> list[str]:
    def named(tokens: Sequence[int]) -> str:
        return ", ".join(f"{mark_text(tokenizer, token)!r} ({token})" for token in tokens)

    notes = []
    if not ends:
        notes.append("no token ends a reply: the chat template writes none, and the tokenizer has no end of sequence")
    elif written is None:
        notes.append(f"the chat template writes no token at the end of a reply; replies end at {named(ends)}")
    elif written != tokenizer.eos_token_id:
        notes.append(f"replies end at {named(ends)}: the chat template writes the first of them")
    elif len(ends) > 1:
        notes.append(f"replies end at {named(ends)}: generation_config.json adds to the template's own")
    if ordinary:
        notes.append(
            f"generation_config.json would end replies at {named(ordinary)}, ordinary text to the tokenizer: they end "
            "none (sampling.stop_token_ids would add them)"
        )
    return notes
