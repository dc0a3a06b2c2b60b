"""Strict validation of environment servers' answers: no text in place of a number, no NaN, no wrong types."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlhf.env.wire import Json, MessageData

M = TypeVar("M", bound=BaseModel)
MESSAGES, TOOLS, ROLES = 1024, 1024, 64
NAME_LENGTH, TEXT_LENGTH = 255, 65536


class Undecodable(ValueError):
    """An answer that cannot be decoded."""


class _Answer(BaseModel):
    """Unknown keys are ignored, as in OpenEnv."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


class _Said(_Answer):
    messages: list[MessageData] = Field(max_length=MESSAGES)


class _Metadata(_Answer):
    terminated: bool
    truncated: bool
    role: str = Field(max_length=NAME_LENGTH)
    info: Json


class ObservationAnswer(_Answer):
    """The `data` of an answer of a server of this library."""

    observation: _Said
    metadata: _Metadata
    reward: float | None


class StockAnswer(_Answer):
    """The `data` of an answer of any other server."""

    observation: Json
    reward: float | None = None
    done: bool
    metadata: Json | None = None


class _Tool(_Answer):
    name: str = Field(min_length=1, max_length=NAME_LENGTH)
    description: str | None = Field(None, max_length=TEXT_LENGTH)
    input_schema: Json | None = None


class SpecAnswer(_Answer):
    """The environment spec that a server of this library sends."""

    name: str = Field(max_length=NAME_LENGTH)
    description: str = Field(max_length=TEXT_LENGTH)
    tools: list[_Tool] = Field(max_length=TOOLS)
    roles: list[str] = Field(min_length=1, max_length=ROLES)


class ErrorAnswer(_Answer):
    """The `data` of an error frame."""

    code: str = ""
    message: str = ""
    kind: str | None = None


def validate_answer(model: type[M], data: Any, what: str) -> M:
    """`data` as a `model`. Raises `Undecodable`, which names the first error and does not repeat the input."""
    try:
        return model.model_validate(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))[:100] or "answer"
        raise Undecodable(f"no {what}: {where}: {first['msg'][:200]}") from None
