"""What becomes of a tokenizer with a template, in the words of the table in `docs/templates.md`."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from rlhf.chat.renderer import ChatRenderer
from rlhf.chat.reply_tokens import ReplyEncoder
from rlhf.chat.templates import prompt_text
from rlhf.chat.turn_end import mark_text
from rlhf.errors import ModelError
from rlhf.types import Message, Tool
from tests.models.vocabularies import tokenizer_of
from tests.models.wire import Wire

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
