"""Settings of an agent program that plays the episodes of a run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from rlhf.chat.tool_format_names import ToolFormatName
from rlhf.config import Config, is_piece
from rlhf.rollout.endpoint.threads import TRAINED

ClientStop = Literal["refuse", "cut"]
"""How a request with `stop` texts is treated."""


class AgentConfig(Config):
    """Your agent program, which calls the policy over OpenAI's API, and its limits."""

    program: str
    """`module:function` `(task, base_url, api_key, **arguments)`, plain or async, that plays one episode. It returns
    the reward if `reward.kind` is `environment`; any other kind scores the last reply, so return None."""
    arguments: dict[str, Any] = Field({})
    """Further keyword arguments of the program."""
    timeout_seconds: float = Field(600, gt=0)
    """Timeout of one episode. An episode that exceeds it is truncated, and keeps all turns so far."""
    max_agents: int = Field(256, ge=1)
    """Maximum number of agents that run at once; other episodes wait. A plain (not async) program runs in its own
    thread. While this many threads hang beyond their timeouts, no program is started, and its episode is lost."""
    tool_format: ToolFormatName = "auto"
    """How the model writes tool calls. `auto`: as its chat template does, or `hermes` if that writes none. By name:
    `hermes` (Hermes, Qwen), `llama3_json`, `mistral`, `deepseek_v3`, `deepseek_v31`, `glm4_0414`, `harmony` (gpt-oss),
    `qwen3_coder` (also Qwen 3.5), `glm45`, another of vLLM's tool parsers, `none`, or `module:function` of yours,
    `(text) -> rlhf.chat.tool_calls.ParsedReply`. Used for requests with tools."""
    train: str = "main"
    """Which replies are trained. `main`: those of the task's own conversation and its summaries;
    `main_without_summaries`; `all`: also those of subagents and side calls; or `module:function` `(kind, call) -> bool`
    (`rlhf.rollout.endpoint.threads.AgentCall`)."""
    client_stop: ClientStop = "cut"
    """How a request with `stop` texts is treated. `cut`: the reply ends at the first of them; the tokens up to there
    are trained, and the episode counts the reply in `cut_replies`. `refuse`: with an error."""

    @model_validator(mode="after")
    def _names(self) -> AgentConfig:
        if not is_piece(self.program):
            raise ValueError(f"program is {self.program!r}; give module:function")
        if self.train not in TRAINED and not is_piece(self.train):
            raise ValueError(f"train is {self.train!r}; write {', '.join(TRAINED)}, or module:function")
        return self
