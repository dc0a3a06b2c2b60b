"""Settings of environments."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rlhf.chat.tool_format_names import ToolFormatName
from rlhf.config import Config, is_piece
from rlhf.http.config import RecordingConfig, Url

IsolationKind = Literal["thread", "process"]
"""Isolation of an environment's code."""

FUNCTION_TOOLS = "rlhf.env.function_tools:FunctionTools"
"""The environment of `environment.tools`."""
CALLS_SHARE = 0.8
"""Share of the deadline of an answer that the tool calls of a reply may take: a late call is answered within it."""
ENVIRONMENT = "environment"
"""The role of workers that serve environments."""


class EnvironmentConfig(Config):
    """An environment that takes turns with the policy, and the limits of its episodes."""

    alternatives: ClassVar = {
        "environment": ("arguments", "eval_arguments", "servers", "isolation"),
        "tools": ("arguments", "eval_arguments", "servers", "isolation"),
        "urls": ("token_env",),
    }
    environment: str | None = None
    """`module:Class` of an environment that this run hosts, for instance `rlhf.env.tools:CalculatorEnvironment`."""
    tools: tuple[str, ...] = ()
    """Functions that the policy may call, each `module:function`, or `module:Class`, whose public methods share the
    state of an episode, instead of `environment`. Type hints and docstrings describe them to the policy. A reply
    without calls ends the episode, and `reward` scores it."""
    urls: tuple[Url, ...] = ()
    """Servers that host the environment (`rlhf serve env`, or a stock OpenEnv server), instead of `environment`. All
    must serve the same environment; sessions are distributed over them."""
    token_env: str | None = None
    """Environment variable with the bearer token of the servers."""
    arguments: dict[str, Any] = Field({})
    """Keyword arguments of the class. With `tools`, `longest` is how many characters of a result the policy reads."""
    eval_arguments: dict[str, Any] = Field({})
    """Keyword arguments that evaluations override, for instance with a fixed opponent after self-play."""
    variables: tuple[str, ...] = ()
    """Names of environment variables that processes of the environment (`isolation: process`) receive in addition to
    the usual ones, such as PATH, and to those that `arguments` name as `token_env`. They receive no other token."""
    servers: int = Field(0, ge=0)
    """Servers of `environment` that this run starts on its cluster, each in its own worker; sessions are distributed
    over them. 0: the environment runs next to the controller."""
    cpus_per_server: float = Field(0.25, gt=0)
    """CPU cores reserved for a server; the number of threads is this rounded down, at least 1."""
    isolation: IsolationKind = "thread"
    """How this run executes the code of `environment`. `thread`: one thread of this process per session, and `async`
    methods on the event loop. `process`: one process per session, for code that hangs, ends its process, or keeps state
    in modules."""
    max_turns: int = Field(8, ge=1)
    """Maximum replies of the policy in one episode; the last one truncates it unless the environment has ended it."""
    turn_timeout_seconds: float = Field(30, gt=0)
    """Deadline for one answer of the environment; an episode that exceeds it is lost."""
    episode_timeout_seconds: float = Field(300, gt=0)
    """Time limit for all answers of the environment in one episode together. An episode that exceeds it is
    truncated."""
    start_timeout_seconds: float = Field(120, gt=0)
    """How long an episode waits for a free session, and then for its environment to be made."""
    max_sessions: int = Field(1024, ge=1)
    """Maximum number of concurrent episodes that this run hosts, on all its servers together; others wait."""
    recording: RecordingConfig | None = None
    """Record the environment's answers to a file, or replay them from one without the environment."""
    last_n: int | None = Field(None, ge=0)
    """The policy sees the first messages and the last `last_n` turns, rendered again for every turn; each turn is a
    separate segment. With 0 it reads the task's messages and the newest observation: for environments that show their
    whole state every time. By default it sees everything, in one growing context."""
    tool_format: ToolFormatName = "auto"
    """How the model writes tool calls. `auto`: as its chat template does, or `hermes` if that writes none. By name:
    `hermes` (Hermes, Qwen), `llama3_json`, `mistral`, `deepseek_v3`, `deepseek_v31`, `glm4_0414`, `harmony` (gpt-oss),
    `qwen3_coder` (also Qwen 3.5), `glm45`, another of vLLM's tool parsers, `none`, or `module:function` of yours,
    `(text) -> rlhf.chat.tool_calls.ParsedReply`. Used if the environment has tools."""

    @model_validator(mode="after")
    def _one_place(self) -> EnvironmentConfig:
        if (self.environment is not None) + bool(self.tools) + bool(self.urls) != 1:
            raise ValueError(
                "give exactly one of environment (module:Class, hosted by this run), tools (functions), urls (servers)"
            )
        if self.environment is not None and not is_piece(self.environment):
            raise ValueError(f"environment is {self.environment!r}; give module:Class")
        if wrong := [name for name in self.tools if not is_piece(name)]:
            raise ValueError(f"tools has {wrong[0]!r}; give module:function or module:Class")
        if self.urls and (self.arguments or self.eval_arguments):
            raise ValueError(
                "arguments and eval_arguments are for an environment that this run hosts; servers set their own"
            )
        if self.urls and self.servers:
            raise ValueError(
                "servers is the number of servers that this run starts; urls names servers that run already; give "
                "one of them"
            )
        if self.urls and self.isolation != "thread":
            raise ValueError("isolation is for an environment that this run hosts; servers set their own")
        if self.eval_arguments and (self.servers or self.recording):
            raise ValueError(
                "eval_arguments make a second environment, which supports neither servers nor recording yet"
            )
        if self.token_env and not self.urls:
            raise ValueError("token_env is for servers; give urls")
        return self

    @property
    def for_evaluation(self) -> EnvironmentConfig:
        return self.model_copy(update={"arguments": self.arguments | self.eval_arguments})

    @property
    def hosted(self) -> str | None:
        """`module:Class` of the environment that this run hosts."""
        return FUNCTION_TOOLS if self.tools else self.environment

    @property
    def hosted_arguments(self) -> dict[str, Any]:
        """Keyword arguments of the class that this run hosts."""
        if not self.tools:
            return self.arguments
        return {"tools": list(self.tools), "seconds": CALLS_SHARE * self.turn_timeout_seconds, **self.arguments}

    @property
    def is_replayed(self) -> bool:
        """Whether a recording replaces the environment, which is then neither imported nor called."""
        return self.recording is not None and self.recording.mode == "replay"

    @property
    def sessions_per_server(self) -> int:
        return math.ceil(self.max_sessions / max(1, self.servers))

    @property
    def shown(self) -> str:
        return self.environment or ", ".join(self.tools or self.urls)
