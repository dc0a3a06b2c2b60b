"""Responses and Messages as their clients see them: what they send back continues the episode as it was sampled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.pace import scaled
from tests.rollout.endpoint.serving import TOKENIZER, Served, scripted, served

CALL = '<tool_call>{"name": "add", "arguments": {"x": 1, "y": 2}}</tool_call>'
THINKS = f"<think>hm</think>{CALL}"
ADD = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}

CLAUDE_CODE: dict[str, Any] = {
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
    "metadata": {"user_id": "u"},
}
"""What Claude Code adds to its requests. Its licence reserves all rights, so no test runs it."""


def responses(base_url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=base_url, api_key="none", timeout=scaled(30), max_retries=0)


async def post(url: str, path: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as asking:
        return await asking.post(f"{url}{path}", json=body, headers=headers, timeout=scaled(30))


def events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        yield body


async def opened(server: Served) -> str:
    return str((await post(server.url, "/sessions")).json()["base_url"])


async def ended(server: Served, base_url: str) -> dict[str, Any]:
    session = base_url.split("/")[-2]
    return (await post(server.url, f"/sessions/{session}/end", reward=1)).json()  # type: ignore[no-any-return]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("remembered", [False, True])
async def test_a_tool_call_over_responses_goes_on_in_one_segment(stream: bool, remembered: bool) -> None:
    async with served(scripted(THINKS, "<think>so</think>3", "done")) as server:
        base_url = await opened(server)
        client = responses(base_url).responses

        async def ask(**asked: Any) -> Any:
            asked = {"model": "m", "tools": [{"type": "function", **ADD}], "instructions": "Add."} | asked
            if not stream:
                return await client.create(**asked)
            async with client.stream(**asked) as streamed:
                seen = [one async for one in streamed]
                assert [one.sequence_number for one in seen] == list(range(len(seen)))
                return await streamed.get_final_response()

        first = await ask(input="go")
        thought, call = first.output
        assert (thought.type, thought.summary[0].text) == ("reasoning", "hm")
        assert (call.name, json.loads(call.arguments)) == ("add", {"x": 1, "y": 2})
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
        said = [{"role": "user", "content": "go"}, *(one.to_dict() for one in first.output), result]
        second = await ask(**({"input": [result], "previous_response_id": first.id} if remembered else {"input": said}))
        assert (second.output_text, second.status) == ("3", "completed")
        said += [*(one.to_dict() for one in second.output), {"role": "user", "content": "more"}]
        more: dict[str, Any] = {"input": "more", "previous_response_id": second.id} if remembered else {"input": said}
        third = await ask(**more)
        assert third.output_text == "done"
        assert third.usage.total_tokens == third.usage.input_tokens + third.usage.output_tokens
        told = await ended(server, base_url)
    assert (told["replies"], told["segments"]) == (3, 1)


@pytest.mark.parametrize(("stream", "more"), [(False, {}), (True, {}), (True, CLAUDE_CODE)])
async def test_a_tool_call_over_messages_goes_on_in_one_segment(stream: bool, more: dict[str, Any]) -> None:
    tool = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}
    asked: dict[str, Any] = {"model": "m", "max_tokens": 32_000, "tools": [tool], "stream": stream} | more
    asked["system"] = [{"type": "text", "text": "Add.", "cache_control": {"type": "ephemeral"}}]
    billing = {"type": "text", "text": "x-anthropic-billing-header: cch=1;"}

    def content(answer: httpx.Response) -> list[dict[str, Any]]:
        assert answer.status_code == 200, answer.text
        if not stream:
            return list(answer.json()["content"])
        blocks: list[dict[str, Any]] = []
        for body in events(answer):
            if body["type"] == "content_block_start":
                blocks.append(body["content_block"])
            elif body["type"] == "content_block_delta":
                for name, value in body["delta"].items():
                    if name == "partial_json":
                        blocks[-1]["input"] = json.loads(value)
                    elif name != "type":
                        blocks[-1][name] += value
        return blocks

    async with served(scripted(f"<think>hm</think>I add.{CALL}", "3")) as server:
        base_url = await opened(server)
        said: list[Any] = [{"role": "user", "content": "go"}]
        said += [{"role": "system", "content": "Be brief."}] if more else []
        first = await post(base_url, "/messages?beta=true", messages=said, **asked)
        thought, text, call = content(first)
        assert (thought["thinking"], text["text"], call["input"]) == ("hm", "I add.", {"x": 1, "y": 2})
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "3"}]}
        said += [{"role": "assistant", "content": [thought, text, call]}, {"role": "user", "content": [result]}]
        count = (await post(base_url, "/messages/count_tokens", messages=said, **asked)).json()["input_tokens"]
        second = await post(base_url, "/messages", messages=said, **asked | {"system": [*asked["system"], billing]})
        assert content(second) == [{"type": "text", "text": "3"}]
        if stream:
            kinds = [body["type"] for body in events(second)]
            block = ["content_block_start", "content_block_delta", "content_block_stop"]
            assert kinds == ["message_start", *block, "message_delta", "message_stop"]
            assert [
                body["delta"]["stop_reason"] for body in events(first) if "stop_reason" in body.get("delta", {})
            ] == ["tool_use"]
        else:
            assert (first.json()["stop_reason"], second.json()["stop_reason"]) == ("tool_use", "end_turn")
            assert second.json()["usage"]["input_tokens"] == count
        told = await ended(server, base_url)
    assert (told["replies"], told["segments"]) == (2, 1)


async def test_custom_and_namespaced_tools_come_back_as_they_were_offered() -> None:
    calls = '<tool_call>{"name": "%s", "arguments": {"%s": "a\\nb"}}</tool_call>'
    custom = {
        "type": "custom",
        "name": "patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"},
    }
    agents = {
        "type": "namespace",
        "name": "agents",
        "description": "",
        "tools": [{"type": "function", "name": "spawn"}],
    }
    tools: Any = [custom, agents, {"type": "web_search"}]
    engine = scripted(calls % ("patch", "input") + calls % ("agents__spawn", "to"), "done")
    async with served(engine) as server:
        base_url = await opened(server)
        client = responses(base_url).responses
        raw = await client.with_raw_response.create(model="m", input="go", tools=tools, store=False, temperature=0.5)
        assert raw.headers["x-rlhf-ignored"] == "store, temperature, tools.web_search"
        patch, spawn = raw.parse().output
        assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "patch", "a\nb")
        assert (spawn.namespace, spawn.name, json.loads(spawn.arguments)) == ("agents", "spawn", {"to": "a\nb"})
        said: Any = [{"role": "user", "content": "go"}, patch.to_dict(), spawn.to_dict()]
        said += [{"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "ok"}]
        said += [{"type": "function_call_output", "call_id": spawn.call_id, "output": "ok"}]
        await client.create(model="m", input=said, tools=tools)
        told = await ended(server, base_url)
    assert (told["replies"], told["segments"]) == (2, 1)


async def test_a_reply_that_is_cut_says_so_on_each_wire() -> None:
    async with served(scripted("four", "four", "a, b"), client_stop="cut") as server:
        short = (await post(server.url, "/v1/responses", input="go", max_output_tokens=2)).json()
        assert (short["status"], short["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "go"}]}
        assert (await post(server.url, "/v1/messages", **asked, max_tokens=2)).json()["stop_reason"] == "max_tokens"
        cut = (await post(server.url, "/v1/messages", **asked, stop_sequences=["!", ","])).json()
        assert (cut["content"], cut["stop_reason"], cut["stop_sequence"]) == (
            [{"type": "text", "text": "a"}], "stop_sequence", ",",
        )  # fmt: skip


async def test_a_thread_of_messages_goes_on_without_repeating_what_was_said() -> None:
    """As anthropic's `tool_runner` asks: system prompt and tools stay."""
    async with served(scripted(CALL, "3")) as server:
        base_url = await opened(server)
        first = {"system": "Add.", "messages": [{"role": "user", "content": "1+2?"}], "thread": {"type": "create"}}
        tools = [{"name": "add", "input_schema": {"type": "object"}}]
        said = (await post(base_url, "/messages", model="m", max_tokens=99, tools=tools, **first)).json()
        [call] = said["content"]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "3"}
        on: dict[str, Any] = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": [result]}]}
        thread = {"type": "continue", "previous_message_id": said["id"]}
        last = (await post(base_url, "/messages", **on, thread=thread)).json()
        assert last["content"] == [{"type": "text", "text": "3"}]
        unknown = await post(base_url, "/messages", **on, thread=thread | {"previous_message_id": "msg_0"})
        assert (unknown.status_code, unknown.json()["error"]["type"]) == (400, "invalid_request_error")
        await ended(server, base_url)
    [(trajectory, _)] = server.kept
    assert [len(one.turns) for one in trajectory.segments] == [2]
    assert [one.role for one in trajectory.conversation] == ["system", "user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("stream", [False, True])
async def test_completions_continue_a_text_or_tokens_exactly_as_given(stream: bool) -> None:
    """As lm-evaluation-harness asks; each request is a segment of its own, also one that repeats another."""
    ids = TOKENIZER.encode("1+2=")
    prompts: list[Any] = [ids, "1+2=", ids]
    async with served(engine := scripted("3. So", "3", "3"), client_stop="cut") as server:
        base_url = await opened(server)
        for prompt in prompts:
            given: dict[str, Any] = {"prompt": prompt, "max_tokens": 9, "temperature": 0, "stop": ["."], "seed": 1}
            asked = responses(base_url).completions.create(
                model="m", extra_body={"return_token_ids": True}, stream=stream, **given
            )
            answer: Any = await asked
            chunks = [chunk async for chunk in answer] if stream else [answer]
            [last] = chunks[-1].choices
            assert "".join(chunk.choices[0].text for chunk in chunks) == "3"
            assert last.finish_reason == "stop"
            assert chunks[0].choices[0].prompt_token_ids == ids
            sampled = engine.said[-1].token_ids.tolist()[: len(last.token_ids)]
            assert last.token_ids == sampled
            assert last.logprobs is None
        with pytest.raises(openai.BadRequestError, match=r"\(3000 in the prompt, 16 in the completion\)"):
            await responses(base_url).completions.create(model="m", prompt=ids[:1] * 3000, stream=stream)
        assert (await ended(server, base_url))["segments"] == 3
    assert [asked[0] for asked in engine.asked] == [ids] * 3
    [(trajectory, _)] = server.kept
    assert {segment.thread for segment in trajectory.segments} == {"main"}
    assert trajectory.conversation[0].content == "1+2="
