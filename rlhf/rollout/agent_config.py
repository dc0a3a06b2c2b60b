"""Settings of an agent program that plays the episodes of a run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from rlhf.chat.tool_format_names import ToolFormatName
from rlhf.config import Config, is_piece
from rlhf.rollout.endpoint.threads import TRAINED

ClientStop = Literal["refuse", "cut"]
"""How a request with `stop` texts is treated."""
PresetName = Literal["codex", "claude-code", "opencode", "pi", "qwen-code", "mini-swe-agent"]
"""Agents that `rlhf/rollout/agent_presets.yaml` knows."""


class AgentConfig(Config):
    """Your agent, a Python function (`program`) or a command of the shell, which calls the policy; and its limits."""

    program: str | None = None
    """`module:function` `(task, base_url, api_key, **arguments)`, plain or async, that plays one episode. It returns
    the reward if `reward.kind` is `environment`; any other kind scores the last reply, so return None."""
    arguments: dict[str, Any] = Field({})
    """Further keyword arguments of the program."""
    command: tuple[str, ...] = ()
    """Instead of a program: the words of a command that plays one episode, in a folder of its own. OPENAI_BASE_URL and
    ANTHROPIC_BASE_URL lead it to the policy. `{prompt}` (the task's last user message), `{model}`, `{base_url}`,
    `{root_url}` (without `/v1`), `{api_key}`, `{here}` (where the run was started) and `{workdir}` are filled in."""
    preset: PresetName | None = None
    """A known agent, which must be installed: its command, unless you give one, and its `env` and `files`."""
    env: dict[str, str] = Field({})
    """Further variables of the command; the same places are filled in. Of the run's own it gets PATH and a few more."""
    files: dict[str, str] = Field({})
    """Texts of files, by their path in the HOME of the command, which is an empty folder; places are filled in."""
    workdir: str = ""
    """Folder that is copied for each episode, in which the command runs. Columns of the task's row are filled in, as in
    `repositories/{name}`. Without one the folder is empty."""
    grader: tuple[str, ...] = ()
    """Words of a command that runs in the episode's folder after the agent, with the same places: exit status 0 is the
    reward 1, another is 0. For `reward.kind: environment`."""
    grader_prints: bool = False
    """Whether the last line that the grader prints is the reward, a number."""
    timeout_seconds: float = Field(600, gt=0)
    """Timeout of one episode. An episode that exceeds it is truncated, and keeps all turns so far."""
    max_agents: int = Field(256, ge=1)
    """Maximum number of agents that run at once; other episodes wait. A plain (not async) program runs in its own
    thread. While this many threads hang beyond their timeouts, no program is started, and its episode is lost."""
    models: tuple[str, ...] = ()
    """For an agent with several roles: the names of the models in its requests, one for each role. Each role is an
    episode of its own, compared with its own, and `roles` can give it a policy. The program may return
    `{"rewards": {model: reward}}`."""
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
        if (self.program is None) == (self.preset is None and not self.command):
            raise ValueError("give program, or else command or preset or both")
        if self.program is not None and not is_piece(self.program):
            raise ValueError(f"program is {self.program!r}; give module:function")
        if len(set(self.models)) < len(self.models):
            raise ValueError(f"models lists one twice: {', '.join(self.models)}")
        if self.train not in TRAINED and not is_piece(self.train):
            raise ValueError(f"train is {self.train!r}; write {', '.join(TRAINED)}, or module:function")
        return self
