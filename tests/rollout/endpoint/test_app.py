"""The endpoint as the stock OpenAI client sees it, and what it answers to what it cannot do."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from rlhf.trainer.batching.batch import build_batch
from rlhf.types import EpisodeStatus, Group, Sample, Sampling, Scored, Ticket
from tests.pace import scaled
from tests.rollout.endpoint.serving import TOKENIZER, scripted, served

CALL = '<tool_call>{"name": "add", "arguments": {"x": 1, "y": 2}}</tool_call>'
ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
GO = {"role": "user", "content": "go"}
OVERFLOW = (
    "This model's maximum context length is 2048 tokens. However, you requested 3275 tokens (3019 in the messages, 256"
)


def client(base_url: str, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=base_url, api_key=key, timeout=scaled(30), max_retries=0)


async def post(url: str, path: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as asking:
        return await asking.post(f"{url}{path}", json=body, timeout=scaled(30))


async def test_an_agent_with_tools_plays_an_episode_in_a_session_of_its_own() -> None:
    engine = scripted(CALL, "3")
    async with served(engine) as server:
        opened = (await post(server.url, "/sessions")).json()
        chat = client(opened["base_url"]).chat.completions
        messages: list[Any] = [GO]
        first = await chat.create(model="any", messages=messages, tools=[ADD])  # type: ignore[list-item]
        [call] = first.choices[0].message.tool_calls or []
        assert (first.choices[0].finish_reason, first.choices[0].message.content) == ("tool_calls", None)
        assert json.loads(call.function.arguments) == {"x": 1, "y": 2}  # type: ignore[union-attr]
        messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
        second = await chat.create(model="any", messages=messages, tools=[ADD])  # type: ignore[list-item]
        assert (second.choices[0].finish_reason, second.choices[0].message.content) == ("stop", "3")
        told = (await post(server.url, f"/sessions/{opened['id']}/end", reward=0.5)).json()
    sampled = sum(len(completion.token_ids) for completion in engine.said)
    assert told == {"replies": 2, "segments": 1, "tokens": sampled}
    [(trajectory, reward)] = server.kept
    assert (reward, trajectory.segments[0].turns[-1].reward, trajectory.status) == (0.5, 0.5, EpisodeStatus.TERMINATED)
    assert [message.content for message in trajectory.task.messages] == ["go"]


async def test_a_session_says_what_it_plays_and_an_unknown_key_is_named() -> None:
    async with served(scripted("1", "2")) as server:
        for names in ({"task": "t", "group": "g", "role": "solver"}, {"task": "t"}):
            opened = (await post(server.url, "/sessions", **names)).json()
            await client(opened["base_url"]).chat.completions.create(model="m", messages=[GO])  # type: ignore[list-item]
            await post(server.url, f"/sessions/{opened['id']}/end", reward=1)
        unknown = await post(server.url, "/sessions", tsk="t")
    assert [(trajectory.task.id, trajectory.role) for trajectory, _ in server.kept] == [("t", "solver"), ("t", "agent")]
    assert server.groups == ["g", "t"]
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "tsk")


async def test_a_stream_says_the_same_as_a_whole_answer() -> None:
    text = "  one two\n\nthree-and-a-word-that-is-longer-than-a-piece-may-be ä€😀 \n"
    async with served(scripted(f"{text}{CALL}", f"{text}{CALL}", text)) as server:
        chat = client(f"{server.url}/v1").chat.completions
        whole = await chat.create(model="m", messages=[GO], tools=[ADD])  # type: ignore[list-item]
        async with chat.stream(
            model="m",
            messages=[GO],
            tools=[ADD],
            stream_options={"include_usage": True},  # type: ignore[list-item]
        ) as stream:
            streamed = await stream.get_final_completion()
        pieces = [
            chunk.choices[0].delta.content or ""
            async for chunk in await chat.create(model="m", messages=[GO], stream=True)
        ]
    assert streamed.choices[0].message.content == whole.choices[0].message.content == text.strip()
    calls = [answer.choices[0].message.tool_calls or [] for answer in (whole, streamed)]
    assert calls[0][0].function.arguments == calls[1][0].function.arguments  # type: ignore[union-attr]
    assert streamed.choices[0].finish_reason == "tool_calls"
    assert streamed.usage == whole.usage
    assert "".join(pieces) == text
    assert len(pieces) > 4


async def test_no_line_of_a_stream_ends_before_its_json_does() -> None:
    text = "one\u2028two\x85three\u2029\x0c"
    async with served(scripted(text)) as server:
        answer = await post(server.url, "/v1/chat/completions", messages=[GO], stream=True)
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if "chunk" in line]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == text


async def test_an_unknown_path_is_answered_with_those_that_exist_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(scripted()) as server:
        answers = [await post(server.url, "/v1/embeddings", input="go") for _ in range(3)]
    assert {answer.status_code for answer in answers} == {404}
    told = answers[0].json()["error"]["message"]
    assert told.startswith("there is no /v1/embeddings; this server has GET /health, ")
    assert "POST /v1/chat/completions" in told
    [logged] = [line for line in caplog.messages if line.startswith("refused: ")]
    assert logged.startswith("refused: POST /v1/embeddings: 404 ")
    assert "there is no /v1/embeddings" in logged


@pytest.mark.parametrize(
    "error", ["'a' + none", "1 // 0", "messages[0].content.missing()", "messages[0]['content'][0:'x']"]
)
async def test_an_error_of_the_chat_template_is_told(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TOKENIZER, "chat_template", "{{ " + error + " }}")
    async with served(scripted()) as server:
        answer = await post(server.url, "/v1/chat/completions", messages=[GO])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "template")
    assert "the chat template refuses a conversation of user: " in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_and_log_probs_are_those_that_were_sampled(stream: bool) -> None:
    engine = scripted("one")
    extra = {"return_token_ids": True}
    async with served(engine) as server:
        chat = client(f"{server.url}/v1").chat.completions
        given = await chat.create(model="m", messages=[GO], logprobs=True, stream=stream, extra_body=extra)
        answers = [chunk async for chunk in given] if stream else [given]  # type: ignore[union-attr, list-item]
    [said] = engine.said
    choices = [answer.choices[0] for answer in answers]  # type: ignore[union-attr]
    ids = [token for choice in choices for token in (choice.model_extra or {}).get("token_ids", [])]
    prompt = [(answer.model_extra or {}).get("prompt_token_ids") for answer in answers]  # type: ignore[union-attr]
    logprobs = [one.logprob for choice in choices if choice.logprobs for one in choice.logprobs.content or []]
    assert ids == said.token_ids.tolist()
    assert [one for one in prompt if one] == [engine.asked[0][0]]
    assert logprobs == said.behaviour_logprobs.tolist()


async def test_a_request_without_a_session_goes_on_with_its_conversation_or_is_an_episode_of_its_own() -> None:
    async with served(scripted("one", "two", "three")) as server:
        chat = client(f"{server.url}/v1").chat.completions
        await chat.create(model="m", messages=[GO])
        more: Any = [GO, {"role": "assistant", "content": "one"}, {"role": "user", "content": "more"}]
        await chat.create(model="m", messages=more)
        await chat.create(model="m", messages=[GO])
        assert len(server.sessions) == 2
        server.front.close()
    assert [len(trajectory.segments[0].turns) for trajectory, _ in server.kept] == [2, 1]


async def test_conversations_without_a_session_make_place_for_others_and_sessions_do_not() -> None:
    async with served(scripted("one", "two", "three", "four"), capacity=2) as server:
        await post(server.url, "/sessions")
        for text in ("a", "b", "c"):
            answer = await post(server.url, "/v1/chat/completions", messages=[{"role": "user", "content": text}])
            assert answer.status_code == 200
        assert [trajectory.task.messages[0].content for trajectory, _ in server.kept] == ["a", "b"]
        assert {(trajectory.status, reward) for trajectory, reward in server.kept} == {(EpisodeStatus.TRUNCATED, None)}
        assert (await post(server.url, "/sessions")).status_code == 200
        assert [trajectory.task.messages[0].content for trajectory, _ in server.kept] == ["a", "b", "c"]
        full = await post(server.url, "/v1/chat/completions", messages=[GO])
    assert (full.status_code, full.json()["error"]["code"]) == (503, "capacity")


async def test_the_conversation_that_rests_longest_makes_place_and_none_that_is_asked() -> None:
    engine = scripted("one", "two", "three")
    async with served(engine, capacity=2) as server:
        for text in ("a", "b"):
            await post(server.url, "/v1/chat/completions", messages=[{"role": "user", "content": text}])
        more = [{"role": "assistant", "content": "one"}, {"role": "user", "content": "more"}]
        await post(server.url, "/v1/chat/completions", messages=[{"role": "user", "content": "a"}, *more])
        await post(server.url, "/sessions")
        [(kept, _)] = server.kept
        assert kept.task.messages[0].content == "b"


async def test_what_would_change_the_distribution_is_ignored_and_named() -> None:
    engine = scripted("one")
    async with served(engine, max_tokens=7) as server:
        raw = client(f"{server.url}/v1").chat.completions.with_raw_response
        answer = await raw.create(
            model="m", messages=[GO], temperature=0.1, top_p=0.5, max_tokens=100, tool_choice="required"
        )
    assert answer.headers["x-rlhf-ignored"] == "temperature, tool_choice, top_p"
    [(_, sampling, seed, _)] = engine.asked
    assert (sampling, seed) == (Sampling(temperature=1.0, max_tokens=7), 100)


async def test_a_client_that_sends_a_seed_decides_the_draws_of_that_reply() -> None:
    engine = scripted("one", "two", "three", "four")
    async with served(engine) as server:
        chat = client(f"{server.url}/v1").chat.completions
        for seed in (3, 3, -1):
            answer = await chat.with_raw_response.create(model="m", messages=[GO], seed=seed)
            assert "x-rlhf-ignored" not in answer.headers
        await chat.create(model="m", messages=[GO])
    first, again, other, its_own = [seed for _, _, seed, _ in engine.asked]
    assert first == again
    assert len({first, other, its_own}) == 3
    assert its_own == 100, "the session's first"


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        ({"n": 2}, "n", "gets one reply"),
        ({"stop": ["\n"]}, "stop", "set agent.client_stop: cut (rlhf serve policy --client-stop cut)"),
        ({"stop": "\n"}, "stop", "only the model ends a reply"),
        ({"stop": [3]}, "stop.0", "string"),
        ({"logprobs": True, "top_logprobs": 3}, "top_logprobs", "sampled tokens"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "critic", "content": ""}]}, "messages.0.role", "system"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content", "image_url"),
        ({"seed": float("nan")}, None, "cannot be read: not JSON: NaN"),
        ({"max_tokens": 0}, "max_tokens", "greater"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "messages", OVERFLOW),
    ],
)  # fmt: skip
async def test_what_cannot_be_given_is_refused_by_name(body: dict[str, Any], param: str | None, why: str) -> None:
    async with served(scripted()) as server, httpx.AsyncClient(trust_env=False) as asking:
        content = json.dumps({"messages": [GO]} | body)
        headers = {"content-type": "application/json"}
        answer = await asking.post(f"{server.url}/v1/chat/completions", content=content, headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert why in error["message"]


@pytest.mark.parametrize(
    "arguments", ["{", "[1]", "NaN", '{"x": NaN}', '{"x": 1e999}', r'{"x": "\ud800"}', "[" * 100_000]
)
async def test_calls_that_an_agent_made_up_must_be_json_objects(arguments: str) -> None:
    call = {"function": {"name": "add", "arguments": arguments}}
    async with served(scripted()) as server:
        messages = [GO, {"role": "assistant", "content": None, "tool_calls": [call]}]
        answer = await post(server.url, "/v1/chat/completions", messages=messages)
    assert answer.status_code == 400


@pytest.mark.parametrize("arguments", [{"x": 1, "y": 2}, '{"y": 2.0, "x": 1}', ' {"x":1.0,"y":2}'])
@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_arguments_as_an_object_and_thinking_of_either_name_continue_the_episode(
    arguments: Any, name: str
) -> None:
    async with served(scripted(f"<think>hm</think>{CALL}", "3")) as server:
        session = (await post(server.url, "/sessions")).json()["id"]
        chat = f"/sessions/{session}/v1/chat/completions"
        await post(server.url, chat, messages=[GO], tools=[ADD])
        call = {"id": None, "type": "function", "function": {"name": "add", "arguments": arguments}}
        reply = {"role": "assistant", "content": None, "tool_calls": [call], name: "hm", "annotations": [], "mood": "?"}
        result = {"role": "tool", "tool_call_id": "x", "content": "3"}
        answer = await post(server.url, chat, messages=[GO, reply, result], tools=[ADD])
        told = (await post(server.url, f"/sessions/{session}/end")).json()
    assert (answer.status_code, answer.headers["x-rlhf-ignored"]) == (200, "messages.mood")
    assert (told["replies"], told["segments"]) == (2, 1)


@pytest.mark.parametrize("arguments", [None, "", {}])
async def test_a_call_without_arguments_has_none(arguments: Any) -> None:
    call = {"function": {"name": "add", "arguments": arguments}}
    async with served(scripted("one")) as server:
        messages = [GO, {"role": "assistant", "content": None, "tool_calls": [call]}]
        answer = await post(server.url, "/v1/chat/completions", messages=messages)
    assert answer.status_code == 200


FORM: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


async def test_a_reply_that_a_grammar_constrained_is_recorded_and_not_trained() -> None:
    engine = scripted("free", '{"a": 1}', CALL)
    async with served(engine, structured=True) as server:
        opened = (await post(server.url, "/sessions")).json()
        chat = client(opened["base_url"]).chat.completions
        said: Any = (await chat.create(model="m", messages=[GO])).choices[0].message  # type: ignore[list-item]
        raw = await chat.with_raw_response.create(model="m", messages=[GO, said, GO], response_format=FORM)
        assert "x-rlhf-ignored" not in raw.headers
        called = await chat.create(model="m", messages=[GO], tools=[ADD], tool_choice="required")  # type: ignore
        assert called.choices[0].message.tool_calls
        await post(server.url, f"/sessions/{opened['id']}/end", reward=1)
    free, form, call = [sampling.structure for _, sampling, _, _ in engine.asked]
    assert (free, json.loads(form)) == ("", {"json": '{"type": "object"}'})
    assert "structural_tag" in json.loads(call)
    [(trajectory, _)] = server.kept
    trained = [segment.token_ids[segment.action_mask].tolist() for segment in trajectory.segments]
    assert trained == [[], engine.said[0].token_ids.tolist()], "as if the environment had said the rest"
    assert [[turn.reward for turn in segment.turns] for segment in trajectory.segments] == [[], [1.0]]
    assert (trajectory.constrained_replies, trajectory.action_tokens) == (2, 5)
    group = Group(
        ticket=Ticket(ordinal=0, version=0),
        task=trajectory.task,
        samples=(Sample(trajectory=trajectory, score=Scored(value=1.0)),),
    )
    batch = build_batch([group])
    assert batch.behaviour_logprobs.tolist() == engine.said[0].behaviour_logprobs.tolist()
    assert batch.rewards.tolist() == [0, 0, 0, 0, 1]


async def test_an_episode_of_constrained_replies_alone_has_nothing_to_train() -> None:
    async with served(scripted("{}"), structured=True) as server:
        opened = (await post(server.url, "/sessions")).json()
        await client(opened["base_url"]).chat.completions.create(model="m", messages=[GO], response_format=FORM)  # type: ignore[list-item]
        told = (await post(server.url, f"/sessions/{opened['id']}/end", reward=1)).json()
    assert told == {"replies": 1, "segments": 1, "tokens": 0}
    assert server.kept[0][0].status is EpisodeStatus.TERMINATED


@pytest.mark.parametrize(
    ("given", "field", "told"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "give {"),
        ({"response_format": {"type": "json_schema", "json_schema": 1}}, "response_format", "give {"),
        ({"tool_choice": "required"}, "tool_choice", "tools has no such function"),
        ({"tools": [ADD], "tool_choice": {"function": {"name": "sub"}}}, "tool_choice", "tools has no such function"),
    ],
)
async def test_a_structure_that_cannot_be_held_is_refused(given: dict[str, Any], field: str, told: str) -> None:
    async with served(scripted("no"), structured=True) as server:
        answer = await post(server.url, "/v1/chat/completions", messages=[GO], **given)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert told in answer.json()["error"]["message"]


async def test_with_client_stop_cut_a_reply_ends_before_a_stop_text_and_the_episode_says_so() -> None:
    async with served(scripted("one, two", "one, two"), client_stop="cut") as server:
        chat = client(f"{server.url}/v1").chat.completions
        answer = await chat.create(model="m", messages=[GO], stop=["!", ","], logprobs=True)
        async with chat.stream(model="m", messages=[GO], stop=",") as stream:
            streamed = await stream.get_final_completion()
    for one in (answer, streamed):
        assert (one.choices[0].message.content, one.choices[0].finish_reason) == ("one", "stop")
    assert [token.token for token in answer.choices[0].logprobs.content or []] == ["o", "n", "e", ","]  # type: ignore[union-attr]
    server.front.close()
    assert [trajectory.cut_replies for trajectory, _ in server.kept] == [1, 1]


async def test_sessions_that_are_unknown_over_or_too_many_are_refused_each_by_its_code() -> None:
    async with served(scripted("one"), capacity=1) as server:
        session = (await post(server.url, "/sessions")).json()["id"]
        full = await post(server.url, "/sessions")
        unknown = await post(server.url, "/sessions/nobody/v1/chat/completions", messages=[GO])
        first = await post(server.url, f"/sessions/{session}/end")
        again = await post(server.url, f"/sessions/{session}/end", reward=1.0)
        late = await post(server.url, f"/sessions/{session}/v1/chat/completions", messages=[GO])
        free = await post(server.url, "/sessions")
    assert (full.status_code, full.headers["retry-after"], full.json()["error"]["code"]) == (503, "1", "capacity")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_session")
    assert first.json() == {"replies": 0, "segments": 0, "tokens": 0}
    assert [(one.status_code, one.headers["x-should-retry"]) for one in (again, late)] == [(409, "false")] * 2
    assert free.status_code == 200
    assert server.kept == [], "an episode without a reply is none"


@pytest.mark.parametrize("reward", ["NaN", "Infinity", '"much"', 'null, "rewrad": 1'])
async def test_a_reward_is_a_number_under_its_own_name(reward: str) -> None:
    async with served(scripted()) as server, httpx.AsyncClient(trust_env=False) as asking:
        session = (await post(server.url, "/sessions")).json()["id"]
        headers = {"content-type": "application/json"}
        content = f'{{"reward": {reward}}}'
        ended = await asking.post(f"{server.url}/sessions/{session}/end", content=content, headers=headers)
        assert ended.status_code == 400
        assert len(server.sessions) == 1


async def test_with_a_token_nobody_is_answered_without_it() -> None:
    async with served(scripted("one"), token="secret") as server:
        with pytest.raises(openai.AuthenticationError):
            await client(f"{server.url}/v1", "guess").chat.completions.create(model="m", messages=[GO])
        await client(f"{server.url}/v1", "secret").chat.completions.create(model="m", messages=[GO])
        async with httpx.AsyncClient(trust_env=False) as asking:
            assert (await asking.get(f"{server.url}/health")).status_code == 200


async def test_a_session_that_nobody_uses_ends_with_its_lease_and_is_kept_truncated() -> None:
    async with served(scripted("one"), lease_seconds=0.2) as server:
        sweeping = asyncio.create_task(server.front.sweep())
        await client(f"{server.url}/v1").chat.completions.create(model="m", messages=[GO])
        async with asyncio.timeout(10):
            while len(server.sessions):
                await asyncio.sleep(0.02)
        sweeping.cancel()
    [(trajectory, reward)] = server.kept
    assert (trajectory.status, reward) == (EpisodeStatus.TRUNCATED, None)
