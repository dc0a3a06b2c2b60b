"""The format of tool calls is that of the chat template; another one is refused, and the right one named."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from rlhf.chat.format_choice import format_for, told_of_tools
from rlhf.chat.renderer import ChatRenderer
from rlhf.errors import ConfigError
from rlhf.models.tiny import byte_tokenizer
from rlhf.types import Message
from tests.models.vocabularies import tokenizer_of
from tests.models.wire import BAR, WIRES
from tests.rollout.playing import ADD

SETTING = "environment.tool_format"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{% set f = call.function %}CALL{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\nTHINK{% endif %}"
)
HERMES = "<tool_call>\n{{ f | tojson }}\n</tool_call>"
QWEN_CODER = (
    "<tool_call>\n<function={{ f.name }}>\n{% for key, value in f.arguments.items() %}<parameter={{ key }}>\n"
    "{{ value }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
)
GLM45 = (
    "\n<tool_call>{{ f.name }}\n{% for key, value in f.arguments.items() %}<arg_key>{{ key }}</arg_key>\n"
    "<arg_value>{{ value if value is string else value | tojson }}</arg_value>\n{% endfor %}</tool_call>"
)
DEEPSEEK = (  # takes the arguments as text, as DeepSeek's templates do
    f"{{{{ '<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>' + f.name + '<{BAR}tool▁sep{BAR}>' + f.arguments"
    f" + '<{BAR}tool▁call▁end{BAR}><{BAR}tool▁calls▁end{BAR}>' }}}}"
)
MISTRAL_V11 = "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"
UNKNOWN = "call {{ f.name }} with {{ f.arguments | tojson }} now"


def tokenizer_with(call: str, think: str = "") -> PreTrainedTokenizerBase:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])
    tokenizer.chat_template = CHATML.replace("CALL", call).replace("THINK", think)
    return tokenizer


def renderer_with(call: str, think: str = "") -> ChatRenderer:
    return ChatRenderer(tokenizer_with(call, think), tools=(ADD,))


def wire_renderer(name: str) -> ChatRenderer:
    wire = next(wire for wire in WIRES if wire.name == name)
    return ChatRenderer(tokenizer_of("byte-level BPE", wire), tools=(ADD,))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (HERMES, "hermes"),
        (MISTRAL_V11, "mistral"),
        (DEEPSEEK, "deepseek_v31"),
        pytest.param(QWEN_CODER, "qwen3_coder", marks=pytest.mark.engine),
        pytest.param(GLM45, "glm45", marks=pytest.mark.engine),
    ],
)
@pytest.mark.parametrize("think", ["", "<think>\n", "<think>\n\n</think>\n\n"], ids=["", "thinks", "thought"])
def test_auto_takes_the_format_of_the_template_also_where_its_header_thinks(call: str, name: str, think: str) -> None:
    renderer = renderer_with(call, think)
    assert format_for(renderer, "auto", SETTING).name == format_for(renderer, name, SETTING).name == name


@pytest.mark.parametrize(
    ("template", "name", "right"),
    [
        ("llama3", "hermes", "llama3_json"),
        ("mistral_v3", "hermes", "mistral"),
        ("qwen3", "llama3_json", "hermes"),
        ("gpt_oss", "mistral", "harmony"),
        pytest.param(QWEN_CODER, "hermes", "qwen3_coder", marks=pytest.mark.engine),
    ],
)
def test_another_format_than_the_templates_is_refused_and_the_right_one_named(
    template: str, name: str, right: str
) -> None:
    renderer = renderer_with(template) if template == QWEN_CODER else wire_renderer(template)
    with pytest.raises(ConfigError, match=rf"tool_format is {name}, which does not parse .*; set {SETTING}: {right}$"):
        format_for(renderer, name, SETTING)


@pytest.mark.engine
@pytest.mark.parametrize("name", ["auto", "hermes"])
def test_a_template_whose_calls_nothing_reads_is_refused(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"call get_weather with .* now'\); set .* module:function of yours, or to none"
    ):
        format_for(renderer_with(UNKNOWN), name, SETTING)


def test_a_template_that_writes_no_calls_leaves_the_choice_to_the_recipe() -> None:
    renderer = ChatRenderer(byte_tokenizer(), tools=(ADD,))
    names = ("auto", "hermes", "llama3_json", "none", "tests.rollout.playing:always")
    assert [format_for(renderer, name, SETTING).name for name in names] == ["hermes", *names[1:]]


def test_a_template_without_tools_is_told_to_those_whose_agents_offer_them() -> None:
    assert told_of_tools(wire_renderer("llama3")) == ()
    assert "does not show the policy the tools" in told_of_tools(ChatRenderer(byte_tokenizer()))[0]


def test_what_the_recipe_reads_itself_or_not_at_all_is_not_compared_with_the_template() -> None:
    renderer = wire_renderer("llama3")
    for name in ("none", "tests.rollout.playing:always"):
        assert format_for(renderer, name, SETTING).name == name


@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("qwen3_coder", "<tool_call><function=drop></function></tool_call>", "there is no tool 'drop'"),
        ("qwen3_coder", "<tool_call><function=get_weather>\n<parameter=city>\nBerlin", "</function> is missing"),
        (
            "qwen3_coder",
            '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>',
            "0 of 1 calls can be parsed",
        ),
        ("qwen3_coder", "<tool_call></tool_call>", "0 of 1 calls can be parsed"),
        ("glm45", "<tool_call>drop</tool_call>", "0 of 1 calls can be parsed; the tools are get_weather"),
        (
            "glm45",
            "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Berlin</tool_call>",
            "0 of 1 arguments can be parsed",
        ),
        ("kimi_k2", "hm", None),
    ],
)
def test_what_vllms_parser_would_drop_is_told_to_the_policy(name: str, text: str, problem: str | None) -> None:
    from rlhf.chat.format_choice import PROBE
    from rlhf.chat.vllm_parsers import vllm_format

    parsed = vllm_format(name, tokenizer_with(HERMES), SETTING)(text, [PROBE])
    assert parsed.calls == ()
    assert (problem or "") in (parsed.problem or "")
    assert (parsed.problem is None) == (problem is None)


@pytest.mark.parametrize("think", ["", "<think>\n"])
def test_a_call_in_a_thought_that_the_header_began_is_a_draft(think: str) -> None:
    renderer = renderer_with(HERMES, think)
    renderer = renderer.reading(format_for(renderer, "auto", SETTING))
    before = renderer.prompt([Message(role="user", content="go")]).token_ids
    draft = '<tool_call>{"name": "add", "arguments": {}}</tool_call> perhaps'
    assert len(renderer.parsed(draft, before).calls) == (0 if think else 1)
    assert renderer.parsed(f"{draft}</think>4", before).calls == ()
    assert renderer.offering(()).parsed(draft, np.zeros(0, np.int32)).calls == ()
