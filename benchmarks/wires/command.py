"""`python -m benchmarks wires`: the latency of a turn on each wire of the policy endpoint, many sessions at once."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf.chat.renderer import ChatRenderer
from rlhf.http.serving import listening
from rlhf.models.tiny import byte_tokenizer
from rlhf.rollout.endpoint.app import policy_app, policy_uvicorn_config
from rlhf.rollout.endpoint.front import Front
from rlhf.rollout.endpoint.sessions import AgentSessions
from rlhf.rollout.episode import PolicyClient
from rlhf.types import Completion, FinishReason, Sampling, Trajectory

TURNS, TURN_SECONDS, REPLY = 4, 60.0, "one and two are three " * 20
SAID = [{"role": "user", "content": "Add the numbers. " * 60}, {"role": "assistant", "content": REPLY}]
WIRES = {
    "chat": ("chat/completions", "messages", b"data: [DONE]"),
    "responses": ("responses", "input", b"event: response.completed"),
    "messages": ("messages", "messages", b"event: message_stop"),
}
"""The path of each wire, its field for the conversation, and the last event of a stream."""


@dataclass
class InstantEngine:
    """Replies at once, so that the endpoint is what is measured."""

    reply: Completion

    async def generate(self, *_: object, **__: object) -> Completion:
        return self.reply


async def measured(sessions: int, rounds: int) -> tuple[dict[str, list[float]], int]:
    """Return the seconds of each wire's turns, and how many turns were not answered in full, or are not in the one
    segment of their episode."""
    tokenizer, kept = byte_tokenizer(), list[Trajectory]()
    ids = np.array([*tokenizer.encode(REPLY), tokenizer.eos_token_id], np.int32)
    columns = {"behaviour_logprobs": np.full(len(ids), -0.5, np.float32), "versions": np.zeros_like(ids)}
    engine = InstantEngine(Completion(token_ids=ids, finish_reason=FinishReason.STOP, **columns))
    budgets = {"sampling": Sampling(max_tokens=len(ids)), "max_context_tokens": 1 << 16, "seed_of": int}
    policy = PolicyClient(engine=engine, renderer=ChatRenderer(tokenizer), session="", **budgets)
    opened, seconds = AgentSessions(capacity=1 << 16), {wire: list[float]() for wire in WIRES}
    front = Front(opened, lambda number: policy, lambda played, *_: kept.append(played), lease_seconds=3600)
    async with listening(policy_uvicorn_config(policy_app(opened, model="m", token=None, front=front))) as url:
        for number in range(rounds):
            for wire in WIRES:
                names = (f"{wire}-{number}-{session}" for session in range(sessions))
                await asyncio.gather(*(play(url, name, seconds[wire], *WIRES[wire]) for name in names))
    front.close()
    whole = sum(len(one.segments[0].turns) for one in kept if len(one.segments) == 1)
    return seconds, len(WIRES) * rounds * sessions * TURNS - min(whole, sum(map(len, seconds.values())))


async def play(url: str, name: str, found: list[float], path: str, field: str, last: bytes) -> None:
    """Ask the turns of one session, and append to `found` the seconds of each that is answered in full."""
    head = f"POST /v1/{path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\nsession-id: {name}\r\n"
    for turn in range(TURNS):
        body, began = json.dumps({field: [*SAID * turn, SAID[0]], "stream": True}), time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        answer = await asyncio.wait_for(reader.read(), TURN_SECONDS)
        writer.close()
        if last in answer:
            found.append(time.perf_counter() - began)


def main(arguments: Sequence[str]) -> None:
    """Print p50 and p99 of a turn's seconds on chat and of each wire over them, and how many turns failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks wires", description=__doc__)
    parser.add_argument("--sessions", type=int, default=200, help="how many ask at once")
    parser.add_argument("--rounds", type=int, default=3, help="how often each wire is measured, in turns")
    options = parser.parse_args(arguments)
    asyncio.run(measured(options.sessions, 1))  # the first requests of a process are slower
    seconds, failures = asyncio.run(measured(options.sessions, options.rounds))
    at = np.array([np.percentile(found or np.nan, (50, 99)) for found in seconds.values()])
    over_chat = dict(zip(WIRES, (at / at[0]).round(2).tolist(), strict=True))
    print("RESULT", json.dumps({"failures": failures, "chat_seconds": at[0].round(3).tolist(), "over_chat": over_chat}))
    if failures:
        sys.exit(f"{failures} turns failed")
