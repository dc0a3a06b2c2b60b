"""OpenRLHF's own reward client: `openrlhf_client.py URL`. Prints what its rollouts take from a server's answers.

The executor of its rollouts is given an engine that says what the test says, and a tokenizer of bytes.
"""

import asyncio
import json
import sys
from types import SimpleNamespace

import torch
from openrlhf.utils.agent import SingleTurnAgentExecutor

PROMPT = "What is 6 * 7?"
REPLIES = [(" 42", "42"), (" 41", "42"), (" 42", None)]
"""Reply and label. Without a label nothing can be scored."""


class Bytes:
    """A token a byte."""

    def __call__(self, text, add_special_tokens, return_tensors):
        return {"input_ids": torch.tensor([list(text.encode())])}

    def decode(self, ids, skip_special_tokens):
        return bytes(ids).decode()


class Engine:
    """Says one reply."""

    def __init__(self, reply):
        self.reply = reply

    async def generate(self, prompt_ids, sampling_params, multi_modal_data):
        said = SimpleNamespace(token_ids=list(self.reply.encode()), finish_reason="stop", logprobs=None)
        return SimpleNamespace(outputs=[said])


async def main(url):
    executor = SingleTurnAgentExecutor(url)
    sampling = SimpleNamespace(max_tokens=16, logprobs=None)
    rollouts = [executor.execute(PROMPT, label, sampling, 64, Bytes(), Engine(reply)) for reply, label in REPLIES]
    ended = await asyncio.gather(*rollouts)
    queries = [PROMPT + reply for reply, _ in REPLIES[:2]]
    batch = await executor._fetch_rewards_via_http(queries, [PROMPT] * 2, ["42"] * 2)
    told = [{name: one[name] for name in ("reward", "scores", "extra_logs")} for one in ended]
    print(json.dumps({"rollouts": told, "batch": batch}))


asyncio.run(main(sys.argv[1]))
