"""Images in agents' requests, over each wire: a conversation with one in every turn is one segment."""

from __future__ import annotations

import base64
import io
from typing import Any

import PIL.Image
import pytest

from rlhf.chat.image_reader import ImageReader
from rlhf.chat.renderer import ChatRenderer
from rlhf.images import IMAGE_MARK
from rlhf.models.config import TinyModelConfig
from rlhf.models.loading import load_tokenizer
from rlhf.models.tiny import save_tiny
from rlhf.rollout.endpoint.app import WIRES
from rlhf.rollout.endpoint.sessions import AgentSession
from rlhf.rollout.endpoint.wires.wire import Wire
from rlhf.rollout.episode import PolicyClient
from rlhf.types import Sampling
from tests.env.environments import picture
from tests.rollout.endpoint.asking import stays
from tests.rollout.endpoint.serving import scripted, served
from tests.rollout.endpoint.test_wires import post
from tests.rollout.playing import TASK

CHAT, _, RESPONSES, MESSAGES = WIRES
TURNS = 4


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatRenderer:
    folder = save_tiny(TinyModelConfig(architecture="qwen3_vl"), 0, tmp_path_factory.mktemp("seeing"))
    return ChatRenderer(load_tokenizer(str(folder)), images=ImageReader(str(folder)))


def url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def part(wire: Wire, data: bytes) -> dict[str, Any]:
    if wire is CHAT:
        return {"type": "image_url", "image_url": {"url": url(data), "detail": "high"}}
    if wire is RESPONSES:
        return {"type": "input_image", "image_url": url(data)}
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


def asked(wire: Wire, turn: int) -> list[dict[str, Any]]:
    """What an agent says: at first as user, then as the result of a tool, and so on."""
    text = {"type": "input_text" if wire is RESPONSES else "text", "text": "turn"}
    content = [text, part(wire, picture(turn).data), text]
    if turn % 2 == 0:
        return [{"role": "user", "content": content}]
    if wire is CHAT:
        return [{"role": "tool", "tool_call_id": "c", "content": content}]
    if wire is RESPONSES:
        return [{"type": "function_call_output", "call_id": "c", "output": content}]
    return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": content}]}]


@pytest.mark.parametrize("wire", [CHAT, RESPONSES, MESSAGES], ids=lambda wire: wire.path)
async def test_a_conversation_with_an_image_each_turn_is_one_segment(wire: Wire, renderer: ChatRenderer) -> None:
    engine = scripted(*(f"reply {turn}" for turn in range(TURNS)), tokenizer=renderer.tokenizer)
    settings = {"sampling": Sampling(max_tokens=64), "max_context_tokens": 2048, "session": "s"}
    session = AgentSession(PolicyClient(engine=engine, renderer=renderer, seed_of=lambda turn: turn, **settings))  # type: ignore[arg-type]
    said: list[dict[str, Any]] = []
    for turn in range(TURNS):
        said += asked(wire, turn)
        body = {("input" if wire is RESPONSES else "messages"): said}
        request = wire.request.model_validate(body).wanted()
        assert request.missed(stops=False) is None
        await session.reply(request.asked(seeds=False), stays)
        said.append({"role": "assistant", "content": f"reply {turn}"})
    [segment] = session.trajectory(TASK, 1.0).segments
    assert [one.features.image for one in segment.images] == [picture(turn) for turn in range(TURNS)]
    assert [message.content for message in session.capture.first] == [f"turn{IMAGE_MARK}turn"]
    for before, turn in zip(engine.asked, segment.turns, strict=True):
        assert before[0] == segment.token_ids[: turn.start].tolist()


@pytest.mark.parametrize("wire", [CHAT, RESPONSES, MESSAGES], ids=lambda wire: wire.path)
async def test_an_image_that_cannot_be_shown_is_refused_by_name(wire: Wire) -> None:
    whole, eps = picture(0).data, io.BytesIO()
    PIL.Image.new("RGB", (28, 28)).save(eps, "eps")
    remote, stored = {"image_url": {"url": "https://a/b.png"}}, {"file_id": "file-1"}
    if wire is MESSAGES:
        remote, stored = {"source": {"type": "url", "url": "https://a/b.png"}}, {"source": {"type": "file", **stored}}
    kind = {"type": part(wire, b"")["type"]}
    async with served(scripted()) as server:
        for image, role, why in [
            (kind | remote, "user", "is on a network ('https://a/b.png'), from which nothing is fetched"),
            (kind | stored, "user", "is named by file_id, but this server keeps no files"),
            (kind | {"image_url": 5, "source": 5}, "user", "must be"),
            (part(wire, whole[:90]), "user", "cannot be decoded"),
            (part(wire, eps.getvalue()), "user", "is in no format"),
            (part(wire, whole), "assistant", "a message of the assistant has an image"),
            (part(wire, whole), "user", "set model.tower"),
        ]:
            name = "input" if wire is RESPONSES else "messages"
            body = {name: [{"role": role, "content": [image]}], "max_tokens": 4}
            answer = await post(server.url, f"/v1{wire.path}", **body)
            assert (answer.status_code, why in answer.json()["error"]["message"]) == (400, True), answer.text
