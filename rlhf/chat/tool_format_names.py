"""Names of the formats in which models write tool calls, as used in recipes."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from rlhf.config import is_piece

AUTO = "auto"
"""The format in which the chat template writes calls."""
OWN_FORMATS = ("hermes", "llama3_json", "mistral", "deepseek_v3", "deepseek_v31", "glm4_0414", "harmony", "none")
"""Formats that this library parses."""
VLLM_FORMATS = (
    "qwen3_coder", "glm45", "apertus", "deepseek_v32", "deepseek_v4",
    "deepseek_v41", "dots", "ernie45", "functiongemma", "gemma4", "gigachat3", "granite", "granite-20b-fc", "granite4",
    "hunyuan_a13b", "hy_v3", "hy_v4", "inkling", "internlm", "jamba", "k2_horizon", "kimi_k2", "kimi_k3", "lfm2",
    "ling3", "llama4_pythonic", "longcat", "mimo", "minicpm5", "minimax_m2", "minimax_m3", "muse_glimmer", "olmo3",
    "phi4_mini_json", "plamo3", "poolside_v1", "pythonic", "seed_oss", "step3", "step3p5", "xlam",
)  # fmt: skip
"""Formats that vLLM's tool parser of that name parses. The first two are tested with texts of models."""
TOOL_FORMATS = (AUTO, *OWN_FORMATS, *VLLM_FORMATS)
SHOWN = f"{AUTO}, {', '.join(OWN_FORMATS)}, qwen3_coder, glm45, another of vLLM's tool parsers, or module:function"
"""What can be given, in words."""


def known_tool_format(name: str) -> str:
    """Return `name` if it is one of `TOOL_FORMATS` or a `module:function`, else raises `ValueError`."""
    if name not in TOOL_FORMATS and not is_piece(name):
        raise ValueError(f"use {SHOWN}")
    return name


ToolFormatName = Annotated[str, AfterValidator(known_tool_format)]
"""One of `TOOL_FORMATS`, or `module:function`."""
