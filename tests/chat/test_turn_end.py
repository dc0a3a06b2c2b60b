"""A reply ends where the model's own template ends a turn, whatever its tokenizer and generation_config.json say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from rlhf.chat.renderer import ChatRenderer
from rlhf.chat.reply_tokens import ReplyEncoder, conversation
from rlhf.chat.templates import demonstration
from rlhf.chat.turn_end import end_of_reply, turn_end
from rlhf.errors import ModelError
from rlhf.models.loading import declared_ends
from rlhf.models.tiny import CHAT_TEMPLATE, byte_tokenizer
from rlhf.types import Message
from tests.models.templates import ENDS_OTHERWISE

PAD, START, END = 0, 1, 2
ASKED = [Message(role="user", content="2?")]
ANSWERED = [*ASKED, Message(role="assistant", content="two")]
WITHOUT_END = CHAT_TEMPLATE.replace("<|im_end|>", "")


def tokenizer_like(template: str = CHAT_TEMPLATE, *, eos: str | None = "<|im_end|>") -> PreTrainedTokenizerBase:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template, tokenizer.eos_token = template, eos
    return tokenizer


@pytest.mark.parametrize(
    ("template", "eos", "end"), [(CHAT_TEMPLATE, "<|pad|>", END), (ENDS_OTHERWISE, "<|im_end|>", PAD)]
)
def test_replies_and_demonstrations_end_where_the_template_ends_a_turn(template: str, eos: str, end: int) -> None:
    """Gemma 3 and Phi 3: the tokenizer's end of sequence is no part of the template."""
    tokenizer = tokenizer_like(template, eos=eos)
    found, replies = turn_end(tokenizer), ReplyEncoder(tokenizer)
    assert found.token_id == replies.end == end_of_reply(tokenizer) == end
    assert set(found.token_ids) == {PAD, END}
    assert "the chat template writes the first of them" in found.told[0]
    assert ChatRenderer(tokenizer).stop_token_ids == found.token_ids
    assert demonstration(tokenizer, ASKED, "two", replies=replies.token_ids).token_ids[-1] == end
    talk = conversation(tokenizer, [*ANSWERED, *ANSWERED], replies=replies)
    rendered = tokenizer.apply_chat_template(
        [{"role": one.role, "content": one.content} for one in [*ANSWERED, *ANSWERED]], tokenize=False
    )
    assert tokenizer.decode(talk.token_ids) == rendered.removesuffix("\n")


def test_declared_ends_count_where_the_tokenizer_knows_them_as_marks_and_others_are_told() -> None:
    found = turn_end(tokenizer_like(), declared=[END, PAD, 65, 66])
    assert found.token_ids == (END, PAD)
    added, ignored = found.told
    assert "'<|im_end|>' (2), '<|pad|>' (0): generation_config.json adds" in added
    assert "'_' (65), '`' (66), ordinary text to the tokenizer: they end none" in ignored


def test_where_no_turn_ends_the_end_of_sequence_does_or_demonstrations_are_refused() -> None:
    found = turn_end(tokenizer_like(WITHOUT_END))
    assert (found.token_id, found.token_ids) == (END, (END,))
    assert "the chat template writes no token at the end of a reply" in found.told[0]
    tokenizer = tokenizer_like(WITHOUT_END, eos=None)
    found = turn_end(tokenizer)
    assert (found.token_id, found.token_ids) == (None, ())
    assert "no token ends a reply" in found.told[0]
    with pytest.raises(ModelError, match="a response could never end"):
        end_of_reply(tokenizer)


def test_the_end_of_a_turn_is_no_part_of_what_is_read() -> None:
    tokenizer = tokenizer_like(eos="<|pad|>")
    said = np.array(tokenizer.encode("two<|im_end|>"), np.int32)
    assert ChatRenderer(tokenizer).text(said) == "two"
    assert ChatRenderer(tokenizer).marked_text(said) == "two"


def test_a_reply_that_stopped_at_something_else_is_closed_before_what_is_heard() -> None:
    """With `sampling.stop` the policy does not say the end of its turn, and the template does."""
    renderer = ChatRenderer(tokenizer_like())
    closed, open_ended = (renderer.increment(ASKED, last).token_ids for last in (END, ord("o")))
    assert open_ended.tolist() == [END, *closed.tolist()]


def test_the_ends_of_a_model_folder_are_those_of_its_generation_config(tmp_path: Path) -> None:
    assert declared_ends(str(tmp_path)) == ()
    for ends, expected in ((7, (7,)), ([2, 65], (2, 65)), (None, ())):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        assert declared_ends(str(tmp_path)) == expected
