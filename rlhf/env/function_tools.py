"""Tools that are Python functions: their names, type hints and docstrings describe them to the policy."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, get_type_hints

import PIL.Image
from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, with_config
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict

from rlhf.chat.conversation import joined
from rlhf.chat.shown import Shown, read_shown, shown
from rlhf.cluster.loop_thread import BackgroundLoop
from rlhf.config import check_call, load_piece
from rlhf.env.encoding import dumps
from rlhf.env.tool_use import Handled, RefusedCall, ToolUseEnvironment, shortened, shortened_shown
from rlhf.errors import (
    ConfigError,
    DataError,
    DeadlinePassed,
    EnvironmentFailed,
    Raised,
    catch,
    catch_awaiting,
    describe_error,
    logged_error,
)
from rlhf.images import Image
from rlhf.types import Message, Observation, Task, Tool
from rlhf.untrusted_text import replace_surrogates

SETTING = "environment.tools"
PICTURES = (Image, PIL.Image.Image)
NOT_TOOLS = ("reset", "close")
"""Methods of a class of tools that begin and end an episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool:
    """A function, or a method of `owner`, as a tool. `arguments` checks and converts those of a call."""

    tool: Tool
    function: Callable[..., Any]
    arguments: TypeAdapter[dict[str, Any]]
    owner: type | None


class FunctionTools(ToolUseEnvironment):
    """Asks the task's question, with tools that are functions (`module:function`) or the public methods of a class
    (`module:Class`), of which every episode has an instance. A result may be a pillow image, or a list of texts and
    images. Its `reset` receives the columns of the row that it names
    as parameters; a text that it returns is appended to the question. An episode has one thread with an event loop. A
    call that raises is answered with the error; so is one that has not returned when the calls of its reply have taken
    `seconds`. The policy reads `longest` characters of a result. The `info` of an observation is the number of
    `tool_errors`, and the public attributes of the instance that JSON can represent. Raises `ConfigError`."""

    def __init__(self, tools: Sequence[str], *, seconds: float = 24.0, longest: int = 16_000) -> None:
        self._found = found_tools(tuple(tools))
        self._seconds, self._longest, self._errors = seconds, longest, 0
        self._instance: Any = None
        self._loop, self._until = BackgroundLoop("tools of an episode"), 0.0
        handled = [Handled(tool=one.tool, run=functools.partial(self._call, one)) for one in self._found]
        super().__init__("tools", f"A question, and {len(handled)} tools", handled)

    def reset(self, task: Task, *, seed: int) -> Observation:
        self._until = time.monotonic() + self._seconds
        said = self._done("reset", lambda: self._begin(task))
        if isinstance(said, Raised):
            raise said.error
        messages = super().reset(task, seed=seed).messages
        shown = joined(messages, (Message(role="user", content=said),)) if isinstance(said, str) else messages
        return Observation(messages=shown, info=self._state())

    def step(self, action: Message) -> Observation:
        self._until = time.monotonic() + self._seconds
        seen = super().step(action)
        return Observation(messages=seen.messages, terminated=seen.terminated, info=self._state())

    def close(self) -> None:
        self._until = time.monotonic() + self._seconds
        try:
            done = self._done("close", self._instance.close) if hasattr(self._instance, "close") else None
            if isinstance(done, Raised):
                raise done.error
        finally:
            self._loop.stop()

    def _begin(self, task: Task) -> Any:
        owner = next((one.owner for one in self._found if one.owner), None)
        self._instance = owner() if owner else None
        if not hasattr(self._instance, "reset"):
            return None
        parameters = inspect.signature(self._instance.reset).parameters
        every = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        return self._instance.reset(**{name: value for name, value in task.row.items() if every or name in parameters})

    def _call(self, one: FunctionTool, arguments: dict[str, Any]) -> str | Shown:
        """Return the result of a call: text, or what it shows. Raises `RefusedCall` for wrong arguments, and when it
        fails, and `EnvironmentFailed` for an image that cannot be shown to a model."""
        name = one.tool.name
        try:
            given = one.arguments.validate_python(dict(arguments))
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            raise RefusedCall(f"{name}: {'.'.join(map(str, wrong['loc']))}: {wrong['msg']}") from None
        function = getattr(self._instance, name) if one.owner else one.function
        try:
            result = self._done(name, lambda: function(**given))
        except (DeadlinePassed, TimeoutError):
            self._errors += 1
            if not inspect.iscoroutinefunction(one.function):  # its thread is still busy; a coroutine is cancelled
                self._loop.stop()
                self._loop = BackgroundLoop("tools of an episode")
            raise RefusedCall(f"{name} did not return within {self._seconds:g} s") from None
        parts = list(result) if isinstance(result, list | tuple) else [result]
        if any(isinstance(part, PICTURES) for part in parts):
            try:
                seen = [self._part(part, name) for part in parts]
            except DataError as error:
                raise EnvironmentFailed("tools", "protocol", str(error)) from None
            return shortened_shown(shown(seen), self._longest)
        text = result if isinstance(result, Raised | str) else catch(lambda: dumps(result))
        if isinstance(text, Raised):
            self._errors += 1
            logged_error(text.error)
            said = catch(lambda: str(text.error))
            raise RefusedCall(shortened(f"{type(text.error).__name__}: {said}", self._longest))
        return shortened(str(replace_surrogates(text)), self._longest)

    @staticmethod
    def _part(part: Any, name: str) -> str | Image:
        if isinstance(part, PICTURES):
            return read_shown(part, f"an image that {name} returned")
        return str(replace_surrogates(part if isinstance(part, str) else dumps(part)))

    def _done(self, name: str, work: Callable[[], Any]) -> Any:
        """Return what `work` returns, awaited if need be, or `Raised`. Raises `DeadlinePassed`."""
        left = max(0.0, self._until - time.monotonic())
        return self._loop.wait_for(name, catch_awaiting(_awaited(work)), left)

    def _state(self) -> dict[str, Any]:
        """Return copies: the episode goes on."""
        held = getattr(self._instance, "__dict__", {}).items()
        plain = {
            name: catch(functools.partial(to_jsonable_python, one)) for name, one in held if not name.startswith("_")
        }
        kept = {name: value for name, value in plain.items() if not isinstance(value, Raised)}
        return {**kept, "tool_errors": self._errors}


async def _awaited(work: Callable[[], Any]) -> Any:
    result = work()
    return await result if isinstance(result, Awaitable) else result


@functools.lru_cache(maxsize=16)
def found_tools(names: tuple[str, ...]) -> tuple[FunctionTool, ...]:
    """Import the tools and describe them; nothing is called. Raises `ConfigError`."""
    found = tuple(tool for name in names for tool in _tools_of(name))
    told = [one.tool.name for one in found]
    if twice := next((name for name in told if told.count(name) > 1), None):
        raise ConfigError(f"{SETTING} has two tools named {twice!r}; rename one")
    owners = dict.fromkeys(one.owner.__name__ for one in found if one.owner)
    if len(owners) > 1:
        raise ConfigError(
            f"{SETTING} has the classes {', '.join(owners)}, but an episode has one state; join them in one class"
        )
    return found


def _tools_of(name: str) -> list[FunctionTool]:
    piece = load_piece(name, SETTING)
    if not inspect.isclass(piece):
        return [_described(piece, name)]
    check_call(piece, name, SETTING, {}, given=0)
    methods = dict(inspect.getmembers(piece, inspect.isfunction))
    tools = [one for one in methods if not one.startswith("_") and one not in NOT_TOOLS]
    if not tools:
        raise ConfigError(f"{SETTING} has {name}, a class without public methods; each of them would be a tool")
    return [_described(methods[one], f"{name}.{one}", piece) for one in tools]


def _described(function: Callable[..., Any], name: str, owner: type | None = None) -> FunctionTool:
    """Return the tool of a function by its signature and docstring. Raises `ConfigError`."""
    from transformers.utils.chat_template_utils import parse_google_format_docstring

    wrong = f"{SETTING} has {name}, "
    called = getattr(function, "__name__", "")
    parameters = list(inspect.signature(function).parameters.values())
    if owner and not isinstance(inspect.getattr_static(owner, called), staticmethod):
        parameters = parameters[1:]
    about, meanings, _ = parse_google_format_docstring(inspect.getdoc(function) or "")
    if not called or not about:
        raise ConfigError(f"{wrong}without a docstring; describe in one what it does, for the policy")
    hints = catch(lambda: get_type_hints(function, include_extras=True))
    if isinstance(hints, Raised):
        raise ConfigError(f"{wrong}whose type hints cannot be read: {describe_error(hints.error)}")
    columns: dict[str, Any] = {}
    for one in parameters:
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise ConfigError(f"{wrong}which takes {one}; the policy gives arguments by name, so name each parameter")
        if one.name not in hints:
            raise ConfigError(f"{wrong}whose parameter {one.name!r} has no type hint; write, say, {one.name}: str")
        hint: Any = hints[one.name]
        hint = Annotated[hint, Field(description=(meanings or {}).get(one.name))]
        columns[one.name] = hint if one.default is one.empty else NotRequired[hint]
    make: Any = TypedDict
    try:
        arguments = TypeAdapter(with_config(ConfigDict(extra="forbid"))(make("Arguments", columns)))
        schema = arguments.json_schema()
    except PydanticUserError as error:
        raise ConfigError(f"{wrong}whose parameters have no JSON schema: {str(error).splitlines()[0]}") from None
    schema.pop("title")
    for one in schema["properties"].values():
        one.pop("title", None)
    tool = Tool(name=called, description=about, parameters=schema)
    return FunctionTool(tool=tool, function=function, arguments=arguments, owner=owner)
