"""Images of environments and their tools arrive as they were given, or as a failure that says what is wrong."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import PIL.Image
import pytest

from rlhf.env.client.dialect import Stock
from rlhf.env.encoding import result_parts
from rlhf.env.function_tools import FunctionTools
from rlhf.env.hosting.isolation import Deadlines
from rlhf.env.server.app import limits_for_sessions
from rlhf.env.wire import Undecodable
from rlhf.errors import EnvironmentFailed
from rlhf.http.binding import Access
from rlhf.images import IMAGE_MARK
from rlhf.models.tiny import byte_tokenizer
from rlhf.protocols import Environments
from rlhf.types import EnvironmentSpec, Message, Observation, Task, ToolCall
from tests.env.environments import picture
from tests.env.hosted import hosted
from tests.env.serving import HERE, served
from tests.env.test_client import QUICK, connected
from tests.rollout.playing import ScriptedEngine, ScriptedEnvironment, play_alone, policy, rules

LARGE = picture(0, 1500)
SHOWN = Message(role="user", content=f"{IMAGE_MARK} what?", images=(LARGE,))
TASK = Task(id="t", messages=(SHOWN,), row={"images": [{"bytes": LARGE.data}], "answer": "4"})
STOCK = Stock(spec=EnvironmentSpec(name="stock", description=""))


@asynccontextmanager
async def painters(kind: str) -> AsyncIterator[Environments]:
    if kind != "served":
        async with hosted("Painter", module=HERE, isolation=kind, turn=30) as environments:  # type: ignore[arg-type]
            yield environments
        return
    with served("Painter", access=Access(limits=limits_for_sessions(4))) as url:
        deadlines = Deadlines(open_seconds=30, reset_seconds=30, step_seconds=30)
        yield await connected(url, replace(QUICK, deadlines=deadlines))


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


@pytest.mark.waits
@pytest.mark.parametrize("kind", ["thread", "process", "served"])
async def test_images_of_several_megabytes_travel_both_ways(kind: str) -> None:
    assert len(LARGE.data) > 6 * 2**20
    async with painters(kind) as environments:
        environment = await environments.open("s")
        assert (await environment.reset(TASK, seed=0)).messages == (SHOWN,)
        [seen] = (await environment.step(say("1500"))).messages
        assert (seen.content, seen.images) == (f"picture {IMAGE_MARK}!", (picture(1, 1500),))
        assert seen.images[0].data == picture(1, 1500).data
        [seen] = (await environment.step(say("pillow"))).messages
        assert seen.images[0].data.startswith(b"\x89PNG")
        for word, why in {
            "broken": "cannot be decoded",
            "lost": r"2 images, and 1 places for them \(U\+FFFC\)",
        }.items():
            with pytest.raises(EnvironmentFailed, match=f"protocol: .*{why}"):
                await environment.step(say(word))
            await environment.reset(TASK, seed=0)
        await environment.close()


def test_what_a_stock_server_shows_is_an_image() -> None:
    pixels = np.arange(56 * 56 * 3, dtype=np.uint8).reshape(56, 56, 3)
    encoded = base64.b64encode(LARGE.data).decode()
    result = {"content": result_parts((SHOWN,))}
    for said, text in [
        ({"screenshot": pixels.tolist(), "goal": "go"}, f"{IMAGE_MARK}go"),
        ({"screenshot": f"data:image/png;base64,{encoded}", "step": 1}, IMAGE_MARK + '{"step": 1}'),
        ({"tool_name": "look", "result": result}, f"{IMAGE_MARK} what?"),
    ]:
        [seen] = STOCK.observation({"observation": said, "done": False}).messages
        assert (seen.content, len(seen.images)) == (text, 1)
    assert seen.images == (LARGE,)
    for wrong in ([[1, 2], [3]], f"data:image/png;base64,{encoded[:80]}"):
        with pytest.raises(Undecodable, match="observation's screenshot"):
            STOCK.observation({"observation": {"screenshot": wrong}, "done": False})


def draw(mode: str) -> Any:
    """Draws."""
    return ["here", PIL.Image.new(mode, (28, 28))]


def test_a_picture_that_a_python_tool_returns_is_shown() -> None:
    environment = FunctionTools(["tests.env.test_images:draw"], longest=10)
    environment.reset(TASK, seed=0)

    def drawn(mode: str) -> Message:
        call = ToolCall(id="c", name="draw", arguments={"mode": mode})
        return environment.step(Message(role="assistant", content="", tool_calls=(call,))).messages[0]

    assert (drawn("RGB").content, len(drawn("RGB").images)) == (f"here{IMAGE_MARK}", 1)
    with pytest.raises(EnvironmentFailed, match="tools: protocol: an image that draw returned cannot be read"):
        drawn("F")
    environment.close()


async def test_a_model_without_a_tower_reads_image_in_a_tools_result() -> None:
    tokenizer = byte_tokenizer()
    first = Message(role="user", content="look")
    result = Message(role="tool", content=f"see {IMAGE_MARK}", images=(picture(0),), tool_call_id="c")
    engine = ScriptedEngine([70], [71], stop=tokenizer.eos_token_id)
    environment = ScriptedEnvironment(*(Observation(messages=(one,)) for one in (first, result, first)))
    played = await play_alone(TASK, policy(engine, tokenizer), environment, seed=0, rules=rules(max_turns=2))
    assert "see [image]" in tokenizer.decode(played.segments[0].token_ids)
    shows = ScriptedEnvironment(Observation(messages=(SHOWN,)))
    failed = await play_alone(TASK, policy(engine, tokenizer), shows, seed=0, rules=rules())
    assert "set model.tower" in failed.detail
