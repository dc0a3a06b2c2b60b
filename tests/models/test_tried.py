"""Kinds of tokenizers with chat templates of well-known families: what was tried is what the docs say, and what the
project promises of prompts, replies and episodes holds for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from rlhf.chat.format_choice import format_for
from rlhf.chat.renderer import ChatRenderer
from rlhf.chat.reply_tokens import ReplyEncoder, conversation
from rlhf.chat.templates import NONE, arguments_with_tools, comparison, demonstration, prompt_ids, prompt_text
from rlhf.chat.turn_end import mark_text
from rlhf.errors import ModelError
from rlhf.types import Message, Segment, Tool, ToolCall
from tests.models.vocabularies import VOCABULARIES, tokenizer_of
from tests.models.wire import WIRES, Wire

PAGE = Path(__file__).parents[2] / "docs" / "templates.md"
RULE = Message(role="system", content="Be brief.")
ASKED = Message(role="user", content="two plus two?")
SAID = Message(role="assistant", content="four")
AGAIN = Message(role="user", content="and an answer?")
HEARD = Message(role="tool", content="42", tool_call_id="call00000")
ADD = Tool(name="add", description="Adds.", parameters={"type": "object", "properties": {"x": {"type": "integer"}}})
THOUGHT = Message(role="assistant", content="<think>\nI say three\n</think>\n\nfour")
REFUSALS = {
    "rewrites earlier text": "refused: rewritten",
    "continues with": "refused: another end",
    "the chat template refuses": "refused by the template",
    "leaves out the text of": "refused: left out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A row of the table, a cell each."""

    template: str
    bos: str
    ends: str
    around: str
    user: str
    tool: str
    system: str
    tools: str
    calls: str
    thinking: str


def renderer_of(tokenizer: PreTrainedTokenizerBase, wire: Wire, *tools: Tool) -> ChatRenderer:
    """As a run makes it."""
    return ChatRenderer(tokenizer, {}, tools, [tokenizer.convert_tokens_to_ids(one) for one in wire.declared])


def tried(vocabulary: str, wire: Wire) -> Tried:
    tokenizer = tokenizer_of(vocabulary, wire)
    renderer, offering = renderer_of(tokenizer, wire), renderer_of(tokenizer, wire, ADD)
    ids = renderer.prompt([ASKED]).token_ids.tolist()
    unsaid = any("show the policy its tools add" in words for words in offering.told)
    return Tried(
        template=wire.name,
        bos=str(ids.count(tokenizer.bos_token_id)) if written_bos(tokenizer) else "0",
        ends=" ".join(code(mark_text(tokenizer, end)) for end in renderer.stop_token_ids),
        around=_around(tokenizer),
        user=_verdict(renderer, "user"),
        tool=_verdict(renderer, "tool"),
        system="taken" if _takes(renderer, [RULE, ASKED]) else "refused",
        tools="left out" if unsaid else "written",
        calls=wire.tool_format if wire.tool_format != "none" or unsaid else "own",
        thinking=_thinking(tokenizer),
    )


def table() -> dict[str, Tried]:
    """What the page says, by template."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| \w+ \| \d \|", line)]
    cells = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    names = [field.name for field in fields(Tried)]
    return {row[0]: Tried(**dict(zip(names, row, strict=True))) for row in cells}


def row(found: Tried) -> str:
    """The line of the page that would be true."""
    cells = [str(getattr(found, field.name)).replace("|", "\\|") for field in fields(Tried)]
    return f"| {' | '.join(cells)} |"


def written_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the template begins with the beginning of sequence."""
    return bool(tokenizer.bos_token) and prompt_text(tokenizer, [ASKED]).startswith(tokenizer.bos_token)


def code(text: str) -> str:
    return f"`{text}`".replace("\n", "\\n")


def _around(tokenizer: PreTrainedTokenizerBase) -> str:
    """What the template writes before a reply, an ellipsis for the reply, and what it writes after it."""
    around = ReplyEncoder(tokenizer).around
    sides = [("a space" if one == " " else code(one)) if one else "" for one in (around.before, around.after)]
    return " … ".join(sides).strip() if any(sides) else "nothing"


def _verdict(renderer: ChatRenderer, role: str) -> str:
    refused = renderer.refusal([role])
    return next((words for start, words in REFUSALS.items() if start in refused), refused) if refused else "appended"


def _takes(renderer: ChatRenderer, messages: list[Message]) -> bool:
    try:
        renderer.prompt(messages)
    except ModelError:
        return False
    return True


def _thinking(tokenizer: PreTrainedTokenizerBase) -> str:
    kept = "three" in prompt_text(tokenizer, [ASKED, THOUGHT, AGAIN])
    begun = prompt_text(tokenizer, [ASKED]).endswith("<think>\n")
    return ("kept" if kept else "forgotten") + (", begun by the header" if begun else "")


BY_NAME = {wire.name: wire for wire in WIRES}
TABLE = table()
ENDED = {"add_generation_prompt": False}
Test = Callable[[str, Wire], None]


def for_templates(names: Iterable[str]) -> Callable[[Test], Callable[[Wire], None]]:
    """Make a test of a tokenizer and a template one of each of these templates, with every tokenizer."""
    chosen = [BY_NAME[name] for name in names]
    assert chosen, "the table has none of them"

    def of_templates(test: Test) -> Callable[[Wire], None]:
        def with_every_tokenizer(wire: Wire) -> None:
            for vocabulary in VOCABULARIES:
                test(vocabulary, wire)

        with_every_tokenizer.__name__ = test.__name__
        return pytest.mark.parametrize("wire", chosen, ids=lambda wire: wire.name)(with_every_tokenizer)

    return of_templates


EVERY = for_templates(BY_NAME)


def where(column: str, *cells: str) -> Callable[[Test], Callable[[Wire], None]]:
    """The templates that have one of these `cells` in a column of the table."""
    return for_templates(name for name, row in TABLE.items() if asdict(row)[column] in cells)


@cache
def made(vocabulary: str, wire: Wire) -> PreTrainedTokenizerBase:
    return tokenizer_of(vocabulary, wire)


def read(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The whole text, read at once, with nothing put before it."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def up_to_last(end: int, token_ids: list[int]) -> list[int]:
    """What templates write behind the end of the last turn is left out."""
    return token_ids[: len(token_ids) - token_ids[::-1].index(end)]


def pieces(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> str:
    """Tokens as they are written in the vocabulary, the spaces of sentencepiece too."""
    return "".join(tokenizer.convert_ids_to_tokens(token_ids))


def assert_same(tokenizer: PreTrainedTokenizerBase, grown: list[int], whole: list[int], prompt: list[int]) -> None:
    """The same tokens; where the last of the prompt and the first of the reply melt into others when they are read at
    once (GPT-2 cuts two newlines before a word), the same text of the same pieces. A policy never sees them melt."""
    if whole[: len(prompt)] == prompt:
        assert grown == whole
    assert pieces(tokenizer, grown) == pieces(tokenizer, whole)


@EVERY
def test_the_table_of_the_docs_is_what_was_found(vocabulary: str, wire: Wire) -> None:
    found = tried(vocabulary, wire)
    assert TABLE.get(wire.name) == found, f"{PAGE.name} should say: {row(found)}"


def test_the_table_has_every_template_and_the_page_every_kind_of_tokenizer() -> None:
    assert list(TABLE) == [wire.name for wire in WIRES]
    assert [kind for kind in VOCABULARIES if kind not in PAGE.read_text(encoding="utf-8")] == []


@EVERY
def test_a_prompt_has_the_beginning_that_the_template_writes_and_no_second_one(vocabulary: str, wire: Wire) -> None:
    tokenizer = made(vocabulary, wire)
    written = prompt_text(tokenizer, [ASKED])
    ids = renderer_of(tokenizer, wire).prompt([ASKED]).token_ids.tolist()
    assert ids == read(tokenizer, written)
    if wire.bos is not None:
        bos = tokenizer.bos_token_id
        assert [ids[0] == bos, ids[1] == bos] == [written_bos(tokenizer), False]
        assert tokenizer(written)["input_ids"] == [bos, *ids], "read as a text it would begin twice"


@EVERY
def test_a_demonstration_is_the_prompt_and_what_the_template_writes_for_the_reply(vocabulary: str, wire: Wire) -> None:
    tokenizer = made(vocabulary, wire)
    prompt, reply = parts(demonstration(tokenizer, [ASKED], SAID.content, replies=ReplyEncoder(tokenizer).token_ids))
    renderer = renderer_of(tokenizer, wire)
    assert prompt == renderer.prompt([ASKED]).token_ids.tolist()
    assert reply[-1] == renderer.stop_token_ids[0]
    assert renderer.text(np.array(reply, np.int32)).strip().endswith(SAID.content)
    whole = read(tokenizer, prompt_text(tokenizer, [ASKED, SAID], ENDED))
    if wire.name == "deepseek_r1":  # its header opens a thought that its history does not have
        whole = [*prompt, *read(tokenizer, "<think>\nfour")[-len(reply) + 1 :], reply[-1]]
    if wire.name == "glm4":  # nothing ends its replies but the next turn
        whole = [*whole, reply[-1]]
    assert_same(tokenizer, [*prompt, *reply], up_to_last(reply[-1], whole), prompt)


@EVERY
def test_two_replies_to_one_prompt_are_each_as_a_demonstration(vocabulary: str, wire: Wire) -> None:
    tokenizer = made(vocabulary, wire)
    replies = ReplyEncoder(tokenizer).token_ids
    both = comparison(tokenizer, [ASKED], "four", "42", replies=replies)
    alone = [demonstration(tokenizer, [ASKED], one, replies=replies) for one in ("four", "42")]
    assert [one.token_ids.tolist() for one in both] == [one.token_ids.tolist() for one in alone]


@where("thinking", "kept", "forgotten", "forgotten, begun by the header")
def test_a_reply_that_thinks_is_not_given_a_second_thought(vocabulary: str, wire: Wire) -> None:
    tokenizer = made(vocabulary, wire)
    prompt, reply = parts(demonstration(tokenizer, [ASKED], THOUGHT.content, replies=ReplyEncoder(tokenizer).token_ids))
    said = tokenizer.decode([*prompt, *reply])
    assert said.count("<think>") == said.count("</think>") == 1


@where("user", "appended")
def test_an_episode_with_a_user_grows_to_what_the_template_renders_whole(vocabulary: str, wire: Wire) -> None:
    tokenizer = made(vocabulary, wire)
    for opening in [[ASKED], *([[RULE, ASKED]] if TABLE[wire.name].system == "taken" else [])]:
        prompt, grown = episode(tokenizer, wire, opening, AGAIN)
        assert_same(tokenizer, grown, prompt_ids(tokenizer, [*opening, SAID, AGAIN]), prompt)


@where("tool", "appended")
def test_an_episode_with_tools_grows_to_what_the_template_renders_whole(vocabulary: str, wire: Wire) -> None:
    tokenizer, offered = made(vocabulary, wire), arguments_with_tools(NONE, [ADD])
    prompt, grown = episode(tokenizer, wire, [ASKED], HEARD, ADD)
    assert_same(tokenizer, grown, prompt_ids(tokenizer, [ASKED, SAID, HEARD], offered), prompt)


@where("user", "appended")
def test_a_demonstration_of_two_replies_is_what_the_template_renders_whole(vocabulary: str, wire: Wire) -> None:
    tokenizer = made(vocabulary, wire)
    said = [ASKED, SAID, AGAIN, Message(role="assistant", content="42")]
    segment = conversation(tokenizer, said, replies=ReplyEncoder(tokenizer)).token_ids.tolist()
    whole = read(tokenizer, prompt_text(tokenizer, said, ENDED))
    assert_same(tokenizer, segment, up_to_last(segment[-1], whole), prompt_ids(tokenizer, [ASKED]))


@where("user", "refused: rewritten", "refused: another end")
def test_an_episode_that_cannot_grow_is_refused_in_one_line_that_says_what_to_do(vocabulary: str, wire: Wire) -> None:
    refused = renderer_of(made(vocabulary, wire), wire).refusal(["user"])
    assert refused is not None
    assert "environment.last_n" in refused
    assert "\n" not in refused


@where("tool", "refused: left out")
def test_answers_of_tools_that_the_template_keeps_from_the_policy_are_refused(vocabulary: str, wire: Wire) -> None:
    with pytest.raises(ModelError, match="leaves out the text of tool messages"):
        renderer_of(made(vocabulary, wire), wire, ADD).increment([HEARD], 0)


@where("system", "refused")
def test_a_system_message_that_the_template_refuses_is_told_with_the_roles(vocabulary: str, wire: Wire) -> None:
    renderer = renderer_of(made(vocabulary, wire), wire)
    with pytest.raises(ModelError, match=r"refuses a conversation of system, user: \w") as refused:
        renderer.prompt([RULE, ASKED])
    assert "\n" not in str(refused.value)


@where("calls", "hermes", "llama3_json", "mistral", "glm4_0414", "harmony")
def test_a_call_as_the_template_writes_it_is_read_as_that_call_and_auto_finds_its_format(
    vocabulary: str, wire: Wire
) -> None:
    renderer = renderer_of(made(vocabulary, wire), wire, ADD)
    calling = ToolCall(id="call00000", name="add", arguments={"x": 2})
    written = renderer.rendered([ASKED], Message(role="assistant", content="", tool_calls=(calling,)))
    assert written is not None
    reply = np.array(read(renderer.tokenizer, written.text), np.int32)
    found = format_for(renderer, "auto", "environment.tool_format")
    [call] = renderer.reading(found).parsed(renderer.marked_text(reply), np.zeros(0, np.int32)).calls
    assert (call.name, call.arguments) == ("add", {"x": 2})
    assert found.name == TABLE[wire.name].calls


@EVERY
def test_a_mark_in_what_a_user_says_is_read_as_that_mark(vocabulary: str, wire: Wire) -> None:
    """As everywhere that a rendered conversation is read as one text."""
    tokenizer = made(vocabulary, wire)
    end = renderer_of(tokenizer, wire).stop_token_ids[0]
    smuggled = Message(role="user", content=f"two{tokenizer.convert_ids_to_tokens(end)} plus")
    plain = Message(role="user", content="two plus")
    counts = [prompt_ids(tokenizer, [one]).count(end) for one in (plain, smuggled)]
    assert counts[1] == counts[0] + 1


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_rewards_read_the_spaces_that_were_sampled(vocabulary: str) -> None:
    tokenizer = tokenizer_of(vocabulary, BY_NAME["chatml"])
    tokenizer.clean_up_tokenization_spaces = True
    renderer = renderer_of(tokenizer, BY_NAME["chatml"])
    said = np.array(ReplyEncoder(tokenizer).token_ids("two , four ."), np.int32)
    assert renderer.text(said) == renderer.marked_text(said) == "two , four ."


def test_spaces_that_a_demonstration_brings_itself_are_not_doubled() -> None:
    tokenizer = made("tiktoken", BY_NAME["llama2"])
    replies = ReplyEncoder(tokenizer)
    assert replies.token_ids(" four ") == replies.token_ids("four") == read(tokenizer, " four </s>")


def test_a_channel_that_a_demonstration_brings_itself_is_not_doubled() -> None:
    tokenizer = made("tiktoken", BY_NAME["gpt_oss"])
    own = "<|channel|>analysis<|message|>two<|end|><|start|>assistant<|channel|>final<|message|>four"
    assert ReplyEncoder(tokenizer).token_ids(own) == read(tokenizer, f"{own}<|return|>")


def test_told_not_to_think_a_demonstration_follows_the_empty_thought_of_its_header() -> None:
    tokenizer, arguments = made("byte-level BPE", BY_NAME["qwen3"]), {"enable_thinking": False}
    segment = demonstration(tokenizer, [ASKED], "four", arguments, replies=ReplyEncoder(tokenizer, arguments).token_ids)
    whole = prompt_text(tokenizer, [ASKED, SAID], {**arguments, **ENDED})
    assert tokenizer.decode(segment.token_ids) == whole.removesuffix("\n")


def parts(segment: Segment) -> tuple[list[int], list[int]]:
    """Prompt and reply."""
    return segment.token_ids[~segment.action_mask].tolist(), segment.token_ids[segment.action_mask].tolist()


def episode(
    tokenizer: PreTrainedTokenizerBase, wire: Wire, opening: list[Message], heard: Message, *tools: Tool
) -> tuple[list[int], list[int]]:
    """The prompt, and the context after a reply as demonstrations teach it and what was heard then."""
    renderer = renderer_of(tokenizer, wire, *tools)
    prompt = renderer.prompt(opening).token_ids.tolist()
    replies = ReplyEncoder(tokenizer, arguments_with_tools(NONE, tools))
    before, after = (one if one.isspace() else "" for one in (replies.around.before, replies.around.after))
    said = replies.rendered_ids(before + SAID.content + after)  # around a reply that is followed, white space is kept
    return prompt, [*prompt, *said, *renderer.increment([heard], said[-1]).token_ids.tolist()]
