"""Settings of an agent program that plays the episodes of a run."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from rlhf.config import Config, is_piece
from rlhf.models.tool_formats import ToolFormatName


class AgentConfig(Config):
    """Your agent program, which calls the policy over OpenAI's API, and how it is run."""

    program: str
    """`module:function` `(task, base_url, api_key, **arguments)`, plain or async, that plays one episode and returns
    its reward, which `reward.kind: environment` takes; with any other kind the last reply is scored, so return None."""
    arguments: dict[str, Any] = Field({})
    """Further keyword arguments of the program."""
    timeout_seconds: float = Field(600, gt=0)
    """Timeout of one episode. An episode that exceeds it is truncated, and keeps all turns so far."""
    max_agents: int = Field(256, ge=1)
    """Maximum number of agents that run at once; other episodes wait. A plain (not async) program runs in its own
    thread. While this many threads hang beyond their timeouts, no further program is started: its episode is lost."""
    tool_format: ToolFormatName = "hermes"
    """How the model writes tool calls: `hermes` (Hermes, Qwen), `llama3_json` (Llama 3.1 and later), `none`, or
    `module:function` of yours, `(text) -> rlhf.rollout.tool_calls.Spoken`. Read where a request offers tools."""

    @model_validator(mode="after")
    def _names(self) -> AgentConfig:
        if not is_piece(self.program):
            raise ValueError(f"program is {self.program!r}; give module:function")
        return self
