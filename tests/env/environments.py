"""Small environments: one to play with, and one for each way to break."""

from __future__ import annotations

import io
import os
import random
import time
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import PIL.Image

from rlhf.images import IMAGE_MARK, Image
from rlhf.types import EnvironmentSpec, Message, Observation, Task, Tool


def said(text: str) -> tuple[Message, ...]:
    return (Message(role="user", content=text),)


class Guess:
    """A number from 1 to 9, decided by the seed; three guesses. The third wrong one truncates."""

    spec = EnvironmentSpec(name="guess", description="Guess a number from 1 to 9.")

    def __init__(self, guesses: int = 3) -> None:
        self._left = guesses

    def reset(self, task: Task, *, seed: int) -> Observation:
        self._number = random.Random(f"{task.id} {seed}").randint(1, 9)
        clue = "odd" if self._number % 2 else "even"
        return Observation(messages=said(f"{task.id}: an {clue} number, code {seed * 7919 % 10007}"))

    def step(self, action: Message) -> Observation:
        self._left -= 1
        if action.content == str(self._number):
            return Observation(messages=said("yes"), reward=1.0, terminated=True)
        over = self._left == 0
        return Observation(messages=said("no"), reward=0.0, truncated=over, info={"left": self._left})

    def close(self) -> None: ...


class Nonce:
    """Counts its steps and repeats what its task is called, so that crossed sessions show."""

    spec = EnvironmentSpec(name="nonce", description="Repeats its name.")

    def __init__(self) -> None:
        self._steps = 0

    def reset(self, task: Task, *, seed: int) -> Observation:
        self._task = task
        return Observation(messages=said(task.id))

    def step(self, action: Message) -> Observation:
        self._steps += 1
        return Observation(messages=said(f"{self._task.id} {self._steps} {action.content}"), reward=float(self._steps))

    def close(self) -> None: ...


class Adder:
    """Has a tool. A call is answered by a message of role `tool`; the text that is the sum ends the episode."""

    spec = EnvironmentSpec(
        name="adder",
        description="Add two numbers with a tool.",
        tools=(
            Tool(
                name="add",
                description="The sum of a and b",
                parameters={
                    "type": "object",
                    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                    "required": ["a", "b"],
                },
            ),
        ),
    )

    def reset(self, task: Task, *, seed: int) -> Observation:
        return Observation(messages=said("2 + 3?"))

    def step(self, action: Message) -> Observation:
        if not action.tool_calls:
            return Observation(messages=said("done"), reward=float(action.content == "5"), terminated=True)
        call = action.tool_calls[0]
        answer = str(call.arguments["a"] + call.arguments["b"])
        return Observation(messages=(Message(role="tool", content=answer, tool_call_id=call.id),))

    def close(self) -> None: ...


class Tooled:
    """Has one tool, `look`, of which the test says what its parameters are."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        tool = Tool(name="look", description="Looks.", parameters=parameters)
        self.spec = EnvironmentSpec(name="tooled", description="Has a tool.", tools=(tool,))

    def reset(self, task: Task, *, seed: int) -> Observation:
        raise NotImplementedError

    def step(self, action: Message) -> Observation:
        raise NotImplementedError

    def close(self) -> None: ...


class Unsayable(Exception):
    """Neither it nor what contains it can be shown."""

    def __str__(self) -> str:
        return str(1 / 0)

    def __repr__(self) -> str:
        raise Unsayable


CYCLE: dict[str, Any] = {}
CYCLE["itself"] = CYCLE
ODD: dict[str, dict[str, Any]] = {
    "huge": {"reward": 10**400},
    "bare": {"messages": "well"},
    "dict": {"messages": ({"role": "user"},)},
    "number": {"messages": (Message(role="user", content=5),)},  # type: ignore[arg-type]
    "words": {"terminated": "false"},
    "uninformed": {"info": None},
    "unreadable": {"reward": Unsayable()},
    "half": {"messages": (Message(role="user", content="half a character: \ud83d"),)},
    "nan": {"reward": float("nan")},
    "info": {"info": {"loss": float("nan")}},
    "bytes": {"info": {"screen": b"\xff"}},
    "cycle": {"info": CYCLE},
    "long": {"messages": said("x" * (33 * 2**20))},
}
"""What a moody environment answers, in place of a good observation's parts."""


class Moody:
    """Does what it is told: `raise`, `unsayable`, `give up`, `hang`, `sleep 0.5`, `exit`, `sys.exit`, `nothing`, and
    what is `ODD`."""

    spec = EnvironmentSpec(name="moody", description="Breaks on demand.")

    def reset(self, task: Task, *, seed: int) -> Observation:
        return self.do(task.id)

    def step(self, action: Message) -> Observation:
        return self.do(action.content)

    def do(self, text: str) -> Observation:
        word, _, rest = text.partition(" ")
        if word == "raise":
            raise ValueError("told to")
        if word == "give":
            raise TimeoutError("of its own")
        if word == "hang":
            time.sleep(3600)
        if word == "sleep":
            time.sleep(float(rest))
        if word == "exit":
            os._exit(7)
        if word == "sys.exit":
            raise SystemExit(3)
        if word == "nothing":
            return None  # type: ignore[return-value]
        if word == "unsayable":
            raise Unsayable
        return replace(Observation(messages=said("well"), reward=0.5), **ODD.get(word, {}))

    def close(self) -> None: ...


def picture(number: int, side: int = 56) -> Image:
    """A picture of noise, another one for every number."""
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
    written = io.BytesIO()
    PIL.Image.fromarray(pixels).save(written, "png")
    return Image(sha256=sha256(written.getvalue()).hexdigest(), data=written.getvalue())


class Painter:
    """Shows the task's messages, and then another picture every turn: the policy says how many pixels a side has, or
    asks for something that is no picture."""

    spec = EnvironmentSpec(name="painter", description="Paints.")

    def reset(self, task: Task, *, seed: int) -> Observation:
        self._painted = 0
        return Observation(messages=task.messages)

    def step(self, action: Message) -> Observation:
        self._painted += 1
        image = picture(self._painted, int(action.content) if action.content.isdigit() else 56)
        images: tuple[Any, ...] = (image,)
        if action.content == "pillow":
            images = (PIL.Image.new("RGB", (56, 56)),)
        if action.content == "broken":
            images = (replace(image, data=image.data[:60]),)
        if action.content == "lost":
            images = (image, image)
        return Observation(messages=(Message(role="user", content=f"picture {IMAGE_MARK}!", images=images),))

    def close(self) -> None: ...


class Stillborn:
    """Its first instance, which tells the spec, is well; no other is."""

    spec = EnvironmentSpec(name="stillborn", description="Cannot be made.")
    made = 0

    def __init__(self) -> None:
        Stillborn.made += 1
        if Stillborn.made > 1:
            raise RuntimeError("no licence")

    def reset(self, task: Task, *, seed: int) -> Observation:
        raise NotImplementedError

    def step(self, action: Message) -> Observation:
        raise NotImplementedError

    def close(self) -> None: ...
