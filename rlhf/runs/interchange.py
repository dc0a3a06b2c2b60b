"""Recorded episodes in the formats of others: trajectories of ATIF 1.8, and OpenEnv's training traces. Pure.

Every turn is in a document once: its reply as it was sampled, after all tokens that the policy had read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from typing import Any

from rlhf.errors import DataError
from rlhf.runs.image_files import recorded_text
from rlhf.runs.records import EpisodeRecord
from rlhf.types import MAIN_THREADS, TokenKind

ABOUT = ("task", "group_name", "outcome", "update", "role", "policy", "status", "answer", "reward", "reward_parts")
"""Columns of an episode that neither format has a place for."""


def name_of(record: EpisodeRecord) -> str:
    """Return a name for an episode that no other of its run has."""
    evaluated = () if record.evaluation_set is None else (record.evaluation_set, record.admitted_version)
    return ".".join(map(str, (*evaluated, record.ordinal, record.sample)))


def training_trace(record: EpisodeRecord) -> dict[str, Any]:
    """Return an episode as OpenEnv's `TrainingTrace`. The mask is 1 at tokens that may be trained. A turn is named by
    its message, so that OpenEnv refuses a reply that is there twice."""
    turns = []
    for one in _turns(record):
        prompt, reply, message = one["prompt"], one["reply"], one.get("message")
        name = f"segment {one['segment']} token {one['start']}" if message is None else f"message {message}"
        mask = [0] * len(prompt) + [int(one["details"]["trained"])] * len(reply)
        about = {"episode": name_of(record), **_about(record), **one["details"], "turn_reward": one["reward"]}
        turns.append(
            {
                "node_id": name, "prompt_token_ids": prompt, "completion_token_ids": reply,
                "per_token_logps": one["logprobs"], "loss_mask": mask, "metadata": about,
            }
        )  # fmt: skip
    return {"schema_version": 1, "turns": turns}


def trajectory(record: EpisodeRecord, text_of: Callable[..., str]) -> dict[str, Any]:
    """Return an episode as a `Trajectory` of ATIF: a step for every message of its conversation, the results of tools
    with their calls. Each context of side calls is a subagent's trajectory, whose messages are the text of its tokens.
    Raises `DataError` for a record that does not say which message a turn is."""
    name, main, side = name_of(record), defaultdict[int, list[Any]](list), defaultdict[int, list[Any]](list)
    heard = record.conversation or [*record.prompt, {"role": "assistant", "content": record.response or ""}]
    said = [{**one, "content": recorded_text(one, record.images)} for one in heard]
    for turn in _turns(record):
        message = turn.get("message") if record.conversation else len(said) - 1
        if message is not None:
            main[message].append(turn)
        elif turn["details"]["thread"] in MAIN_THREADS:
            raise DataError(f"episode {name} is of a version that did not record the message of a turn; use openenv")
        else:
            asked, reply = text_of(*turn["prompt"][turn["new"] :]), text_of(*turn["reply"])
            side[turn["segment"]].append({"source": "user", "message": asked})
            side[turn["segment"]].append({"source": "agent", "message": reply, **_sampled(turn)})
    steps, calling = list[dict[str, Any]](), dict[str | None, dict[str, Any]]()
    for place, one in enumerate(said):
        if one["role"] == "tool":
            call = one.get("tool_call_id")
            if call not in calling and (not steps or steps[-1]["source"] == "user"):
                steps.append({"source": "system", "message": ""})
            results = calling.get(call, steps[-1]).setdefault("observation", {"results": []})["results"]
            result = {"content": one["content"]} | ({"source_call_id": call} if call in calling else {})
            if call not in calling or result not in results:  # an agent that rewrites its history repeats it
                results.append(result)
        elif one["role"] == "assistant":
            # Without a turn, the agent repeats it, or it was in the prompt.
            copied = {} if record.constrained_replies else {"is_copied_context": True}
            calls = [
                {"tool_call_id": call.get("id") or f"call {place}.{number}", "function_name": call["name"],
                 "arguments": call["arguments"]}
                for number, call in enumerate(one.get("tool_calls") or ())
            ]  # fmt: skip
            for turn in main.get(place, [None]):
                step = {"source": "agent", "message": one["content"]} | ({"tool_calls": calls} if calls else {})
                steps.append(step | (_sampled(turn) if turn else copied))
                calling |= dict.fromkeys([call["tool_call_id"] for call in calls], steps[-1])
        else:
            source = "system" if one["role"] in ("system", "developer") else "user"
            steps.append({"source": source, "message": one["content"]})
    kinds = record.segment_threads or ()
    beside = [_document(f"{name}.{segment}", own, {"kind": kinds[segment]}) for segment, own in side.items()]
    return _document(name, steps, _about(record)) | ({"subagent_trajectories": beside} if beside else {})


def _sampled(turn: Mapping[str, Any]) -> dict[str, Any]:
    metrics = {
        "prompt_tokens": len(turn["prompt"]), "completion_tokens": len(turn["reply"]),
        "prompt_token_ids": turn["prompt"], "completion_token_ids": turn["reply"], "logprobs": turn["logprobs"],
        "extra": turn["details"],
    }  # fmt: skip
    return {"llm_call_count": 1, "metrics": metrics, "extra": {"reward": turn["reward"]}}


def _document(name: str, steps: Sequence[Mapping[str, Any]], extra: Mapping[str, Any]) -> dict[str, Any]:
    sampled = [step["metrics"] for step in steps if "metrics" in step]
    totals = {f"total_{key}": sum(one[key] for one in sampled) for key in ("prompt_tokens", "completion_tokens")}
    return {
        "schema_version": "ATIF-v1.8", "trajectory_id": name, "agent": {"name": "rlhf", "version": version("rlhf")},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": totals | {"total_steps": len(steps)}, "extra": dict(extra),
    }  # fmt: skip


def _about(record: EpisodeRecord) -> dict[str, Any]:
    return {name: value for name in ABOUT if (value := getattr(record, name)) is not None}


def _turns(record: EpisodeRecord) -> Iterator[dict[str, Any]]:
    """Iterate over the recorded turns, each also with its `reply`, and with the tokens of the context before it as
    `prompt`, of which those from `new` follow the turn before. Log-probs are at most 0: float32 rounds above it."""
    tokens, kinds, logprobs, versions = record.token_ids, record.kinds, record.behaviour_logprobs, record.versions
    if tokens is None or kinds is None or logprobs is None or versions is None:
        raise DataError(f"episode {name_of(record)} has turns and lacks their tokens, or log-probs")
    begins, new = [0, *accumulate(record.segment_lengths or ())], defaultdict[int, int](int)
    for turn in record.turns or ():
        segment, begin = turn["segment"], begins[turn["segment"]]
        own = slice(begin + turn["start"], begin + turn["stop"])
        details = {
            "segment": segment, "thread": record.segment_threads[segment] if record.segment_threads else "main",
            "trained": bool((kinds[own] == TokenKind.ACTION).all()), "versions": versions[own].tolist(),
        }  # fmt: skip
        prompt, reply = tokens[begin : own.start].tolist(), tokens[own].tolist()
        sampled = {"prompt": prompt, "reply": reply, "logprobs": logprobs[own].clip(max=0).tolist()}
        yield turn | sampled | {"new": new[segment], "details": details}
        new[segment] = turn["stop"]
