"""What all wires share: a request becomes an `AgentRequest`, and the policy's reply an answer in the wire's format."""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, InstanceOf, WithJsonSchema

from rlhf.chat.call_json import json_of, serialisable
from rlhf.chat.reply_grammar import called
from rlhf.chat.shown import Shown, read_shown, shown
from rlhf.chat.thinking import MARK, thought_and_said
from rlhf.errors import DataError
from rlhf.images import Image
from rlhf.rollout.endpoint.capture import Replied
from rlhf.rollout.endpoint.marks import AgentRequest
from rlhf.rollout.endpoint.sessions import ChatRefused
from rlhf.types import FinishReason, Message, Tool

STOP = (
    "{name} is {value}: the policy's tokens are trained as sampled, so only the model ends a reply; to cut replies at "
    "such texts set agent.client_stop: cut (rlhf serve policy --client-stop cut)"
)
"""Why stop texts are refused by default."""
NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
"""Field names that are safe to repeat in a header."""


TEXTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text")


IMAGES = ("image_url", "input_image", "image")
"""Types of parts that are an image: of Chat Completions, Responses and Messages."""


def content_text(content: Any) -> Any:
    """Return a text: as given, empty for null, or joined from parts."""
    if not isinstance(content, list):
        return "" if content is None else content
    found = shown([_part(part, number) for number, part in enumerate(content)])
    if found.images:
        raise ValueError("an image is not supported here, only text")
    return found.text


def content_shown(content: Any) -> Any:
    """Return a text with its images: as given, empty for null, or joined from parts."""
    if isinstance(content, list):
        return shown([_part(part, number) for number, part in enumerate(content)])
    if content is not None and not isinstance(content, str):
        raise ValueError("a content must be a text or a list of parts")
    return Shown(content or "")


def _part(part: Any, number: int) -> str | Image:
    """Return a part. Raises `ValueError` for one that is neither a text nor an image that is sent with it."""
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind in IMAGES:
        return part_image(part, f"part {number}, of type {kind},")
    if kind not in TEXTS or not isinstance(part.get("text"), str):
        kinds = "text, input_text, output_text, image_url, input_image and image"
        raise ValueError(f"only parts of type {kinds} are supported, not {kind!r:.40}")
    return str(part["text"])


def part_image(part: Mapping[str, Any], where: str) -> Image:
    """Return the image of a part: base64, which OpenAI's clients write as a `data:` URL. Raises `ValueError`."""
    given = part.get("source" if part["type"] == "image" else "image_url")
    source = given if isinstance(given, Mapping) else {"url": given}
    if part.get("file_id") or source.get("file_id"):
        raise ValueError(f"{where} is named by file_id, but this server keeps no files: send it as base64")
    try:
        return read_shown(source.get("data") or source.get("url"), where)
    except DataError as error:
        raise ValueError(str(error)) from None


def an_object(arguments: Any) -> Any:
    """Return a call's arguments, which are an object or the JSON text of one."""
    read = json_of(arguments) if isinstance(arguments, str) and arguments.strip() else serialisable(arguments or {})
    if not isinstance(read, dict):
        raise ValueError("a call's arguments must be a JSON object, or its text")
    return read


Text = Annotated[str, BeforeValidator(content_text)]
Content = Annotated[
    InstanceOf[Shown],
    BeforeValidator(content_shown),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}, {"type": "null"}]}),
]
Arguments = Annotated[dict[str, Any], BeforeValidator(an_object)]


class WireRequest(BaseModel, ABC):
    """The body of a request. Fields that are given but not declared are ignored by name: they would change the sampling
    distribution, which the server determines, or have no effect here."""

    model_config = ConfigDict(extra="allow")

    REFUSED: ClassVar[Mapping[str, str]] = {}
    """Fields that cannot be supported and whose absence a client would notice, and why."""
    NOTHING: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Values of such fields that request nothing."""

    model: str = ""
    stream: bool | None = None
    seed: int | None = None
    tool_choice: Any = None

    @property
    def follows(self) -> str | None:
        """The id of the answer that the request goes on from, if it does not repeat the conversation."""
        return None

    @abstractmethod
    def wanted(self, before: Sequence[Message] = (), tools: Sequence[Tool] = ()) -> Wanted:
        """Return what the request asks for, in a conversation that goes on from the messages `before`, with `tools`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a request of any wire asks for. `instructions` are of this reply alone; the reply's text has a `form`;
    `left_out` are fields within messages and tools that have no effect; `names`: of the fields for stop and form;
    `prompt`: see `AgentRequest`."""

    request: WireRequest
    conversation: tuple[Message, ...]
    instructions: str | None = None
    tools: tuple[Tool, ...] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    form: Any = None
    left_out: frozenset[str] = frozenset()
    names: tuple[str, str] = ("stop", "response_format")
    prompt: str | tuple[int, ...] | None = None

    def asked(self, *, seeds: bool) -> AgentRequest:
        """Return the request for the policy. With `seeds`, its own seed determines the sampling, if it has one."""
        given = [Message(role="system", content=self.instructions)] if self.instructions else []
        return AgentRequest(
            messages=joined_parts([*given, *self.conversation]) if given else self.conversation,
            tools=self.tools,
            reads_calls=bool(self.tools) and called(self.request.tool_choice) != "none",
            max_tokens=self.max_tokens,
            stop=self.stop,
            seed=self.request.seed if seeds else None,
            prompt=self.prompt,
        )

    def missed(self, *, stops: bool) -> tuple[str, str] | None:
        """Return the first unsupported field, and why. `stops`: whether replies are cut at stop texts."""
        if any(message.role == "assistant" and message.images for message in self.conversation):
            return "messages", "a message of the assistant has an image, but the policy writes text"
        if self.stop and not stops:
            return self.names[0], STOP.format(name=self.names[0], value=f"{list(self.stop)!r:.40}")
        for name, why in self.request.REFUSED.items():
            value = (self.request.model_extra or {}).get(name)
            if value is not None and value not in self.request.NOTHING.get(name, ()):
                return name, why.format(value=f"{value!r:.40}")
        return None

    def ignored(self, *, seeds: bool, structured: bool) -> list[str]:
        """Return the fields that were given and have no effect."""
        others = (self.request.model_extra or {}).items()
        given = {name for name, value in others if value is not None and name not in self.request.REFUSED}
        named = {name for name in given | self.left_out if NAME.fullmatch(name)}
        if self.form is not None and not structured:
            named.add(self.names[1])
        choice = called(self.request.tool_choice)
        if choice == "other" or not (structured or choice in ("auto", "none")):
            named.add("tool_choice")
        if self.request.seed is not None and not seeds:
            named.add("seed")
        return sorted(named)


R = TypeVar("R", bound=WireRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(ABC, Generic[R]):
    """The answer to one request of `model`. `text` decodes tokens, special tokens included."""

    request: R
    replied: Replied
    model: str
    text: Callable[[NDArray[np.int32]], str]
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """Return the body of the answer."""

    @abstractmethod
    def stream(self) -> Iterator[bytes]:
        """Iterate over the answer's events."""

    @property
    def was_cut(self) -> bool:
        """Whether a limit ended the reply."""
        return self.replied.completion.finish_reason is not FinishReason.STOP

    @property
    def tokens(self) -> tuple[int, int]:
        """The lengths of prompt and reply."""
        return len(self.replied.token_ids), len(self.replied.completion.token_ids)

    def thought_and_text(self) -> tuple[str, str]:
        """Return the reply's thinking and what it says. Sent back as `reasoning_content` and text, they are the reply:
        `marks.said` splits it in the same way."""
        content = self.replied.message.content
        thought, text = thought_and_said(content)
        thought = MARK.sub("", thought).strip()
        return (thought, text.strip()) if thought else ("", content)


def event(body: dict[str, object] | dict[str, Any], name: str | None = None) -> bytes:
    """Return an event of a stream. In ASCII: some clients end a line at U+2028."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(body, allow_nan=False)}\n\n".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A format of requests at `path`, of their answers, whose ids begin with `prefix`, and of errors. `failed` is the
    event of an error in a stream that has begun, `alive` one that says nothing."""

    path: str
    prefix: str
    request: type[WireRequest]
    answer: type[Answer[Any]]
    error: Callable[[ChatRefused], dict[str, object]] = ChatRefused.as_json
    failed: Callable[[ChatRefused], bytes] = lambda refused: event(refused.as_json())
    alive: bytes = b": keep-alive\n\n"


def joined_parts(parts: Sequence[Message]) -> tuple[Message, ...]:
    """Join the parts of each reply (thinking, text, calls, in this order) to one message, and the system messages at
    the beginning, of which most templates allow one."""
    messages: list[Message] = []
    for part in parts:
        last = messages[-1] if messages else None
        if last and part.role == last.role == "system" and len(messages) == 1:
            text = f"{last.content}\n\n{part.content}"
            messages[-1] = replace(last, content=text, images=last.images + part.images)
        elif last and part.role == last.role == "assistant" and (part.tool_calls or _rank(part) > _rank(last)):
            messages[-1] = replace(
                last,
                content=last.content + part.content,
                images=last.images + part.images,
                tool_calls=last.tool_calls + part.tool_calls,
            )
        else:
            messages.append(part)
    return tuple(messages)


def _rank(message: Message) -> int:
    return 2 if message.tool_calls else 0 if message.reasoning_content and not message.content else 1
