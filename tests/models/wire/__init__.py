"""Chat templates of well-known families, written for these tests from the documentation of what goes over the wire: the
marks, the roles, what is refused and what is forgotten. The wording of tool prompts is not theirs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import AddedToken

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A family's template and the tokens that its tokenizer adds for it.

    `marks` are special tokens, `plain_marks` added ones that are not special; `swallows` says that marks take the
    white space behind them. `declared` are the ends that its `generation_config.json` names, `tool_format` is how
    `rlhf` reads its calls.
    """

    name: str
    eos: str
    bos: str | None = None
    marks: tuple[str, ...] = ()
    plain_marks: tuple[str, ...] = ()
    swallows: bool = False
    declared: tuple[str, ...] = ()
    tool_format: str = "none"

    @property
    def template(self) -> str:
        return (FOLDER / f"{self.name}.jinja").read_text(encoding="utf-8")

    @property
    def added(self) -> list[AddedToken]:
        named = dict.fromkeys(one for one in (self.bos, self.eos, *self.marks) if one)
        special = [AddedToken(one, special=True, normalized=False, rstrip=self.swallows) for one in named]
        return special + [AddedToken(one, special=False, normalized=False) for one in self.plain_marks]


BAR = "\uff5c"
"""DeepSeek's full-width bar."""
HERMES = ("<tool_call>", "</tool_call>")
THINKING = ("<think>", "</think>")
LLAMA3 = ("<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>", "<|eom_id|>", "<|python_tag|>")
MISTRAL = (
    "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
)  # fmt: skip
R1_TOOLS = tuple(f"<{BAR}tool▁{what}▁{which}{BAR}>" for what in ("outputs", "output") for which in ("begin", "end"))
WIRES = (
    Wire(
        name="chatml",
        eos="<|im_end|>",
        marks=("<|im_start|>", "<|endoftext|>"),
        plain_marks=HERMES,
        declared=("<|im_end|>", "<|endoftext|>"),
        tool_format="hermes",
    ),
    Wire(
        name="qwen3",
        eos="<|im_end|>",
        marks=("<|im_start|>", "<|endoftext|>"),
        plain_marks=(*HERMES, *THINKING),
        declared=("<|im_end|>", "<|endoftext|>"),
        tool_format="hermes",
    ),
    Wire(
        name="llama3",
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        marks=LLAMA3,
        declared=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        tool_format="llama3_json",
    ),
    Wire(name="llama2", bos="<s>", eos="</s>", declared=("</s>",)),
    Wire(name="mistral_v1", bos="<s>", eos="</s>", declared=("</s>",)),
    Wire(name="mistral_v3", bos="<s>", eos="</s>", marks=MISTRAL, declared=("</s>",), tool_format="mistral"),
    Wire(
        name="gemma",
        bos="<bos>",
        eos="<eos>",
        marks=("<start_of_turn>", "<end_of_turn>"),
        declared=("<eos>", "<end_of_turn>"),
    ),
    Wire(
        name="phi3",
        bos="<s>",
        eos="<|endoftext|>",
        marks=("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        swallows=True,
        declared=("<|endoftext|>", "<|assistant|>", "<|end|>"),
    ),
    Wire(name="zephyr", bos="<s>", eos="</s>", declared=("</s>",)),
    Wire(
        name="deepseek_r1",
        bos=f"<{BAR}begin▁of▁sentence{BAR}>",
        eos=f"<{BAR}end▁of▁sentence{BAR}>",
        marks=(f"<{BAR}User{BAR}>", f"<{BAR}Assistant{BAR}>"),
        plain_marks=(*THINKING, *R1_TOOLS),
        declared=(f"<{BAR}end▁of▁sentence{BAR}>",),
    ),
    Wire(
        name="glm4",
        eos="<|endoftext|>",
        marks=("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        declared=("<|endoftext|>", "<|user|>", "<|observation|>"),
        tool_format="glm4_0414",
    ),
    Wire(
        name="granite",
        bos="<|end_of_text|>",
        eos="<|end_of_text|>",
        marks=("<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>"),
        declared=("<|end_of_text|>",),
    ),
    Wire(
        name="gpt_oss",
        bos="<|startoftext|>",
        eos="<|return|>",
        marks=("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>", "<|endoftext|>"),
        declared=("<|return|>", "<|endoftext|>", "<|call|>"),
        tool_format="harmony",
    ),
)
