"""The OpenEnv wire format: schemas of a client's messages and of a server's answers, and error codes. Plain data, which
`encoding.py` converts. Answers are validated strictly: text in place of a number, or NaN, is an error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

import jsonschema
from jsonschema_specifications import REGISTRY
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from referencing import Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from rlhf.errors import RlhfError
from rlhf.untrusted_text import read_json

Json = dict[str, Any]
M = TypeVar("M", bound=BaseModel)
API_VERSION = "1.0.0"
MESSAGES, TOOLS, ROLES = 1024, 1024, 64
NAME_LENGTH, TEXT_LENGTH = 255, 65536
EXTRAS_VERSION = 1
"""Features of this library's servers beyond OpenEnv; `/metadata` announces them under `extras`."""


class Code(StrEnum):
    INVALID_JSON = "INVALID_JSON"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    VALIDATION_ERROR = "VALIDATION_ERROR"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    """The environment failed, or the request is not possible in this state; `kind` says which."""
    CAPACITY_REACHED = "CAPACITY_REACHED"
    FACTORY_ERROR = "FACTORY_ERROR"
    SESSION_ERROR = "SESSION_ERROR"


class EnvironmentRefused(RlhfError):
    """A request that receives an error response with HTTP `status` and `details`."""

    def __init__(self, code: Code, message: str, status: int, **details: Any) -> None:
        super().__init__(message)
        self.code, self.status, self.details = code, status, details

    @property
    def data(self) -> Json:
        return {"message": str(self), "code": self.code, **self.details}


class Strict(BaseModel):
    """A frame or body that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CallData(Strict):
    """A tool call of an action."""

    id: str = ""
    name: str
    arguments: Json = Field(default_factory=dict)


class MessageData(Strict):
    """One message of a task or an observation."""

    role: str
    content: str
    images: list[str] = Field(default_factory=list, description="Encoded images in base64, one for each U+FFFC")
    tool_calls: list[CallData] = Field(default_factory=list)
    tool_call_id: str | None = None


class TaskData(Strict):
    """The task of an episode."""

    id: str
    messages: list[MessageData] = Field(default_factory=list)
    answer: str | None = None
    row: Json = Field(default_factory=dict)


class ResetData(BaseModel):
    """The body of a reset. Other keys are ignored, as in OpenEnv; `task` and `request_id` are extensions."""

    model_config = ConfigDict(extra="allow", frozen=True)

    seed: int | None = Field(default=None, ge=0, le=2**63 - 1)
    episode_id: str | None = Field(default=None, max_length=255)
    task: TaskData | None = None
    request_id: str | None = Field(default=None, max_length=255)


def text_again(value: object) -> object:
    """Undo verifiers' JSON decoding of replies: a number, a truth value or a list becomes text again."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, int | float | list) else value


class ActionMetadata(BaseModel):
    """Notes of the client on an action. `request_id` makes a repeated step safe."""

    model_config = ConfigDict(extra="allow", frozen=True)

    request_id: str | None = Field(None, min_length=1, max_length=255)


class Action(Strict):
    """The policy's reply. Only `text` is required, so text-only clients can act."""

    # verifiers treats a schema titled `Action` as a server that has only tools.
    model_config = ConfigDict(title="Reply")

    text: Annotated[str, BeforeValidator(text_again)] = Field(description="The policy's text")
    tool_calls: list[CallData] = Field(default_factory=list, description="Tool calls, already parsed")
    metadata: ActionMetadata = ActionMetadata()


class ListTools(Strict):
    """Requests the environment's tools; does not count as a step."""

    type: Literal["list_tools"]
    metadata: ActionMetadata = ActionMetadata()


class CallTool(Strict):
    """Calls one tool: a step."""

    type: Literal["call_tool"]
    tool_name: str
    arguments: Json = {}
    metadata: ActionMetadata = ActionMetadata()


FrameType = Literal["reset", "step", "state", "close"]


class Frame(Strict):
    """A client's frame. `data` holds the options of a reset, or the action of a step."""

    type: FrameType
    data: Json = Field(default_factory=dict)


class ObservationData(BaseModel):
    """An observation. `text` is the contents of `messages`; `tools` are sent with a reset."""

    messages: list[MessageData] = Field(default_factory=list)
    text: str = ""
    role: str = "agent"
    tools: list[Json] = []
    metadata: Json = Field(default={}, description="`terminated`, `truncated`, `role`, `info`")
    reward: float | None = None
    done: bool = False


class StateData(BaseModel):
    """The state of a session."""

    model_config = ConfigDict(extra="allow")

    episode_id: str | None = None
    step_count: int = Field(default=0, ge=0)


def parse_frame(text: str | bytes) -> Frame:
    """Parse a client's frame. Raises `EnvironmentRefused` with the wire format's code for the error."""
    try:
        raw = read_json(text)
    except ValueError as error:
        raise EnvironmentRefused(Code.INVALID_JSON, f"Invalid JSON: {error}", 400) from None
    kind = raw.get("type", "") if isinstance(raw, dict) else ""
    if kind not in get_args(FrameType):
        raise EnvironmentRefused(Code.UNKNOWN_TYPE, f"Unknown message type: {kind!r:.100}", 400)
    return validated(Frame, raw)


def parse_action(data: Json, has_tools: bool) -> Action | ListTools | CallTool:
    """Parse an action by its `type`, if it has one that environments with tools know. Raises `EnvironmentRefused`."""
    match data.get("type"):
        case "list_tools" if has_tools:
            return validated(ListTools, data)
        case "call_tool" if has_tools:
            return validated(CallTool, data)
    return validated(Action, data)


def validated(model: type[M], data: object) -> M:
    """Parse `data` as a `model`. Raises `EnvironmentRefused` with pydantic's list of errors, without the input."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
    summary = "; ".join(f"{'.'.join(map(str, problem['loc'])) or 'body'}: {problem['msg']}" for problem in problems[:3])
    raise EnvironmentRefused(Code.VALIDATION_ERROR, f"Invalid message: {summary}", 422, errors=problems)


class Undecodable(ValueError):
    """An answer that cannot be decoded."""


class _Answer(BaseModel):
    """Unknown keys are ignored, as in OpenEnv."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


class _Messages(_Answer):
    messages: list[MessageData] = Field(max_length=MESSAGES)


class _Metadata(_Answer):
    terminated: bool
    truncated: bool
    role: str = Field(max_length=NAME_LENGTH)
    info: Json


class ObservationAnswer(_Answer):
    """The `data` of an answer of a server of this library."""

    observation: _Messages
    metadata: _Metadata
    reward: float | None


class StockAnswer(_Answer):
    """The `data` of an answer of any other server."""

    observation: Json
    reward: float | None = None
    done: bool
    metadata: Json | None = None


def problem_of_schema(schema: dict[str, Any]) -> str | None:
    """Return why a tool's `input_schema`, plain JSON, is not a valid schema of an object; None if it is one."""
    kind = schema.get("type", "object")
    try:
        jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator).check_schema(schema)
    except jsonschema.SchemaError as error:
        return f"is invalid at {error.json_path}: {error.message:.200}"
    if "object" not in kind:
        return f"has type {kind!r:.100}, but a tool takes an 'object'"
    root = Resource.from_contents(schema, default_specification=DRAFT202012)
    dangling = next(_dangling(root, REGISTRY.resolver_with_root(root)), None)
    return dangling and f"refers to {dangling!r:.100} but does not define it"


def _dangling(schema: Any, resolver: Any) -> Iterator[str]:
    if isinstance(schema.contents, Mapping) and "$ref" in schema.contents:
        try:
            resolver.lookup(schema.contents["$ref"])
        except Unresolvable:
            yield schema.contents["$ref"]
    for inner in schema.subresources():
        yield from _dangling(inner, resolver.in_subresource(inner))


class _Tool(_Answer):
    name: str = Field(min_length=1, max_length=NAME_LENGTH)
    description: str = Field(max_length=TEXT_LENGTH)
    input_schema: Json

    @model_validator(mode="after")
    def _has_valid_schema(self) -> Self:
        if problem := problem_of_schema(self.input_schema):
            raise ValueError(f"the schema of tool {self.name!r:.100} {problem}")
        return self


class SpecAnswer(_Answer):
    """The environment spec that a server of this library sends."""

    name: str = Field(max_length=NAME_LENGTH)
    description: str = Field(max_length=TEXT_LENGTH)
    tools: list[_Tool] = Field(max_length=TOOLS)
    roles: list[str] = Field(min_length=1, max_length=ROLES)


class ErrorAnswer(_Answer):
    code: str = ""
    message: str = ""
    kind: str | None = None


def validate_answer(model: type[M], data: Any, what: str) -> M:
    """Parse `data` as a `model`. Raises `Undecodable`, which names the first error and does not repeat the input."""
    try:
        return model.model_validate(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))[:100] or "answer"
        raise Undecodable(f"invalid {what}: {where}: {first['msg'][:200]}") from None
