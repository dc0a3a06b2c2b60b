"""Every frame of the WebSocket, and every error, as a client without any of our code sees them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed

from tests.env.environments import Stillborn
from tests.env.serving import active, comes_to, quick, served, talking

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def guess() -> Iterator[str]:
    with served("Guess") as url:
        yield url


@pytest.fixture(scope="module")
def adder() -> Iterator[str]:
    with served("Adder") as url:
        yield url


def code(answer: dict) -> str:
    assert answer["type"] == "error"
    return answer["data"]["code"]


async def test_a_reset_needs_no_data_and_answers_with_the_wires_keys(guess: str):
    async with talking(guess) as talk:
        answer = await talk.ask({"type": "reset"})
    assert answer["type"] == "observation"
    assert set(answer["data"]) == {"observation", "reward", "done", "metadata"}
    assert answer["data"]["reward"] is None
    assert answer["data"]["done"] is False
    assert answer["data"]["metadata"] == answer["data"]["observation"]["metadata"]


async def test_an_episode_that_is_cut_off_is_done_and_truncated_and_not_terminated(guess: str):
    async with talking(guess) as talk:
        await talk.reset(seed=1)
        for _ in range(2):
            assert (await talk.step("none"))["data"]["done"] is False
        last = (await talk.step("none"))["data"]
    assert last["done"] is True
    assert (last["metadata"]["terminated"], last["metadata"]["truncated"]) == (False, True)
    assert last["metadata"]["info"] == {"left": 0}


async def test_the_task_of_a_reset_reaches_the_environment(guess: str):
    async with talking(guess) as talk:
        answer = await talk.reset(seed=1, task={"id": "mine", "messages": [{"role": "user", "content": "hello"}]})
    assert answer["data"]["observation"]["text"].startswith("mine: ")


async def test_the_state_counts_steps_and_keeps_the_name_of_the_episode(guess: str):
    async with talking(guess) as talk:
        await talk.reset(seed=1, episode_id="ep-1")
        await talk.step("none")
        assert await talk.ask({"type": "state"}) == {"type": "state", "data": {"episode_id": "ep-1", "step_count": 1}}


async def test_a_second_reset_is_a_new_episode_in_a_fresh_environment(guess: str):
    async with talking(guess) as talk:
        first = await talk.reset(seed=5)
        for _ in range(3):
            await talk.step("none")
        assert (await talk.reset(seed=5))["data"]["observation"]["text"] == first["data"]["observation"]["text"]
        assert (await talk.step("none"))["data"]["metadata"]["info"] == {"left": 2}


async def test_close_ends_the_connection_normally_without_an_answer(guess: str):
    async with talking(guess) as talk:
        await talk.socket.send('{"type":"close"}')
        with pytest.raises(ConnectionClosed) as closed:
            await talk.hear()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1000


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("{", "INVALID_JSON"),
        ("[" * 100_000, "INVALID_JSON"),
        ("[1]", "UNKNOWN_TYPE"),
        ({"type": "jump"}, "UNKNOWN_TYPE"),
        ({"type": ["reset"]}, "UNKNOWN_TYPE"),
        ({"type": "reset", "extra": 1}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"seed": -1}}, "VALIDATION_ERROR"),
        ({"type": "step"}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"text": {}}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"text": "1", "extra": 1}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"text": "1", "tool_calls": [{"name": "x", "arguments": "{"}]}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"text": "1", "metadata": {"request_id": 7}}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"text": "x" * 2**20}}, "VALIDATION_ERROR"),
    ],
)
async def test_what_makes_no_sense_is_answered_and_the_episode_goes_on(guess: str, frame: object, expected: str):
    async with talking(guess) as talk:
        await talk.reset(seed=1)
        answer = await talk.ask(frame)
        assert code(answer) == expected
        assert expected != "VALIDATION_ERROR" or "errors" in answer["data"]
        assert (await talk.step("none"))["data"]["metadata"]["info"] == {"left": 2}


@pytest.mark.parametrize(("said", "heard"), [(5, "5"), (0.5, "0.5"), (True, "true"), (["é", 1], '["é", 1]')])
async def test_a_reply_that_a_client_took_for_json_is_text_again(said: object, heard: str):
    with served("Nonce") as url:
        async with talking(url) as talk:
            await talk.reset(task={"id": "t"})
            answer = await talk.ask({"type": "step", "data": {"text": said}})
    assert answer["data"]["observation"]["text"] == f"t 1 {heard}"


async def test_a_step_before_the_reset_and_after_the_end_is_refused_with_words(guess: str):
    async with talking(guess) as talk:
        early = await talk.step("1")
        await talk.reset(seed=1)
        for _ in range(3):
            await talk.step("none")
        late = await talk.step("1")
    assert (code(early), early["data"]["kind"]) == ("EXECUTION_ERROR", "order")
    assert "before the first reset" in early["data"]["message"]
    assert (code(late), late["data"]["kind"]) == ("EXECUTION_ERROR", "order")
    assert "after the episode's end" in late["data"]["message"]


async def test_at_capacity_the_answer_says_so_and_the_socket_is_closed():
    with served("Guess", max_sessions=1) as url:
        async with talking(url) as first:
            await first.reset()
            async with talking(url) as second:
                answer = await second.hear()
                with pytest.raises(ConnectionClosed):
                    await second.hear()
        assert code(answer) == "CAPACITY_REACHED"
        assert (answer["data"]["active_sessions"], answer["data"]["max_sessions"]) == (1, 1)
        assert await comes_to(url, 0)
        async with talking(url) as third:
            assert (await third.reset())["type"] == "observation"


async def test_an_environment_that_cannot_be_made_is_a_factory_error():
    Stillborn.made = 0
    with served("Stillborn") as url:
        async with talking(url) as talk:
            answer = await talk.hear()
        assert code(answer) == "FACTORY_ERROR"
        assert "no licence" in answer["data"]["message"]
        assert await active(url) == 0


async def test_a_session_id_that_nobody_has_is_a_session_error(guess: str):
    async with talking(guess, "?session_id=nobody") as talk:
        assert code(await talk.hear()) == "SESSION_ERROR"


async def test_tools_are_listed_and_called_by_actions(adder: str):
    async with talking(adder) as talk:
        first = await talk.reset()
        listed = await talk.ask({"type": "step", "data": {"type": "list_tools"}})
        call = {"type": "call_tool", "tool_name": "add", "arguments": {"a": 2, "b": 3}}
        called = (await talk.ask({"type": "step", "data": call}))["data"]
        state = await talk.ask({"type": "state"})
    assert first["data"]["observation"]["tools"] == listed["data"]["observation"]["tools"]
    assert [tool["name"] for tool in listed["data"]["observation"]["tools"]] == ["add"]
    assert called["observation"]["error"] is None
    assert called["observation"]["result"]["content"] == [{"type": "text", "text": "5"}]
    assert state["data"]["step_count"] == 1


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("subtract", {}, "tool_not_found"),
        ("add", {"a": 2}, "invalid_args"),
        ("add", {"a": 2, "b": "three"}, "invalid_args"),
    ],
)
async def test_a_call_that_cannot_be_made_is_an_observation_and_no_step(
    adder: str, name: str, arguments: object, expected: str
):
    async with talking(adder) as talk:
        await talk.reset()
        call = {"type": "call_tool", "tool_name": name, "arguments": arguments}
        answer = await talk.ask({"type": "step", "data": call})
        state = await talk.ask({"type": "state"})
    assert answer["data"]["observation"]["error"]["error_type"] == expected
    assert state["data"]["step_count"] == 0


async def test_tool_calls_of_a_message_travel_with_its_text(adder: str):
    call = {"id": "c1", "name": "add", "arguments": {"a": 20, "b": 3}}
    async with talking(adder) as talk:
        await talk.reset()
        answer = await talk.ask({"type": "step", "data": {"text": "let me see", "tool_calls": [call]}})
    message = answer["data"]["observation"]["messages"][0]
    assert message == {"role": "tool", "content": "23", "tool_call_id": "c1"}


async def test_a_close_frame_ends_a_session_though_its_client_has_left():
    with served("Moody", deadlines=quick(60)) as url:
        async with talking(url, "?open=mine") as talk:
            await talk.reset()
            step = {"text": "sleep 2", "metadata": {"request_id": "goes on without its client"}}
            await talk.socket.send(json.dumps({"type": "step", "data": step}))
            await talk.socket.send('{"type":"close"}')
            await asyncio.sleep(0.2)
            talk.kill()
            assert await comes_to(url, 0, seconds=10)


async def test_a_killed_client_frees_its_slot_even_in_the_middle_of_a_step():
    with served("Moody", deadlines=quick(60)) as url:
        async with talking(url) as talk:
            await talk.reset()
            await talk.socket.send(json.dumps({"type": "step", "data": {"text": "sleep 5"}}))
            await asyncio.sleep(0.2)
            talk.kill()
            assert await comes_to(url, 0, seconds=4)
