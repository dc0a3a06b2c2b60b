"""Choose the format of tool calls: parsing must recover a call that the chat template renders."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf.chat.renderer import ChatRenderer, ReplyAsWritten
from rlhf.chat.tool_calls import FORMATS, ToolFormat, check_tool_format, hermes, own_format, plain_text
from rlhf.chat.tool_format_names import AUTO, VLLM_FORMATS
from rlhf.chat.vllm_parsers import vllm_format
from rlhf.config import is_piece
from rlhf.errors import ConfigError, ModelError
from rlhf.types import Message, Tool, ToolCall

PROBE = Tool(
    name="get_weather",
    description="Returns the weather.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
)
CALL = ToolCall(id="call00000", name=PROBE.name, arguments={"city": "Berlin", "days": 3})
ASKED = Message(role="user", content="placeholder question")
CALLING = Message(role="assistant", content="", tool_calls=(CALL,))
SHOWN_CHARACTERS = 120


def format_for(renderer: ChatRenderer, name: str, setting: str) -> ToolFormat:
    """Return the format that `setting` names. `auto` is the format in which the chat template writes calls, or `hermes`
    if it writes none. Raises `ConfigError` if the template writes calls in another format, which the error names."""
    check_tool_format(name, setting)
    if is_piece(name):
        return own_format(name, setting)
    written = renderer.offering([PROBE]).rendered([ASKED], CALLING) if name != plain_text.name else None
    if written is None or PROBE.name not in written.text:
        return hermes if name == AUTO else _named(name, renderer, setting)
    if name != AUTO and _reads(named := _named(name, renderer, setting), written):
        return named
    right = next((one for one in _formats(renderer, setting) if _reads(one, written)), None)
    if right is not None and name == AUTO:
        return right
    use = f"set {setting}: {right.name}" if right else f"set {setting} to a module:function of yours, or to none"
    read = "no known format parses" if name == AUTO else f"{setting} is {name}, which does not parse"
    raise ConfigError(
        f"{read} the tool calls that this model's chat template writes ({written.text.strip()[:SHOWN_CHARACTERS]!r}); "
        f"{use}"
    )


def told_of_tools(renderer: ChatRenderer) -> tuple[str, ...]:
    """Return a note if the chat template does not show the policy the tools that agents offer in their requests."""
    try:
        shown = renderer.whole_text(renderer.offering([PROBE]).prompt([ASKED]).token_ids)
    except ModelError:  # some templates need more than one user message
        return ()
    note = (
        "the chat template does not show the policy the tools in a request; the agent must describe them in its "
        "messages"
    )
    return () if PROBE.name in shown else (note,)


def _named(name: str, renderer: ChatRenderer, setting: str) -> ToolFormat:
    return FORMATS[name] if name in FORMATS else vllm_format(name, renderer.tokenizer, setting)


def _formats(renderer: ChatRenderer, setting: str) -> Iterator[ToolFormat]:
    """Yield the formats that this model's tokenizer can write, this library's first."""
    yield from FORMATS.values()
    for name in VLLM_FORMATS:
        try:
            yield vllm_format(name, renderer.tokenizer, setting)
        except ConfigError:  # the tokenizer lacks a token
            continue


def _reads(read: ToolFormat, written: ReplyAsWritten) -> bool:
    parsed = read(written.text, [PROBE], thinking=written.thinking)
    return [(call.name, call.arguments) for call in parsed.calls] == [(CALL.name, CALL.arguments)]
