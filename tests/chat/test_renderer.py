"""What the recipe says to the chat template reaches prompts and demonstrations alike."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from rlhf.chat.renderer import ChatRenderer
from rlhf.models.tiny import byte_tokenizer
from rlhf.types import Message, Task

MESSAGES = (Message(role="system", content="Brief."), Message(role="user", content="2?"))
WITHOUT_THINKING = {"enable_thinking": False}


@pytest.fixture(scope="module")
def thinking() -> PreTrainedTokenizerBase:
    """A template that thinks unless it is told not to, as Qwen3's."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template += "{% if add_generation_prompt and enable_thinking is false %}<think></think>{% endif %}"
    return tokenizer


def test_the_arguments_reach_the_prompt(thinking: PreTrainedTokenizerBase) -> None:
    plain, told = ChatRenderer(thinking), ChatRenderer(thinking, WITHOUT_THINKING)
    assert thinking.decode(told.prompt(MESSAGES).token_ids) == (
        "<|im_start|>system\nBrief.<|im_end|>\n<|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n<think></think>"
    )
    assert "<think>" not in thinking.decode(plain.prompt(MESSAGES).token_ids)


def test_the_length_of_a_prompt_is_counted_as_it_is_rendered(thinking: PreTrainedTokenizerBase) -> None:
    task, told = Task(id="t", messages=MESSAGES), ChatRenderer(thinking, WITHOUT_THINKING)
    assert told.prompt_tokens(task) == len(told.prompt(MESSAGES).token_ids)
    assert told.prompt_tokens(task) == ChatRenderer(thinking).prompt_tokens(task) + len("<think></think>")


def test_the_episodes_of_a_group_share_one_rendered_prompt(thinking: PreTrainedTokenizerBase) -> None:
    renderer = ChatRenderer(thinking)
    prompts = [renderer.prompt(list(MESSAGES)) for _ in range(3)]
    assert prompts[0] is prompts[1] is prompts[2]
    assert not prompts[0].token_ids.flags.writeable
    assert renderer.prompt(MESSAGES[1:]).token_ids.tolist() != prompts[0].token_ids.tolist()


def test_only_the_frame_of_a_turn_is_left_out_of_what_a_reward_reads() -> None:
    tokenizer = byte_tokenizer()
    marks = ["<think>", "</think>", "[TOOL_CALLS]"]
    tokenizer.add_tokens(marks, special_tokens=True)
    tokenizer.chat_template += "{% if add_generation_prompt %}<think>{% endif %}"
    said = "<think>253</think>235[TOOL_CALLS]"
    ids = tokenizer.encode(f"<|im_start|>{said}<|im_end|>{tokenizer.pad_token}", add_special_tokens=False)
    assert ChatRenderer(tokenizer).text(np.array(ids, np.int32)) == said
