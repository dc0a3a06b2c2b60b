"""The engine on real vLLM, in float32, against brute-force forward passes of transformers in float64."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from rlhf.engines.vllm.engine_worker import EngineWorker
from rlhf.engines.vllm.environment import engine_environment
from rlhf.engines.vllm.settings import UNPUBLISHED, GenerateRequest, RefusedRequest
from rlhf.errors import EngineBroken, ModelError
from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import byte_tokenizer, save_tiny
from rlhf.types import Completion, FinishReason, SampledTokens
from rlhf.weight_sync.types import Manifest
from tests.engines.vllm.made import ended, made_settings
from tests.pace import scaled

if TYPE_CHECKING:
    from rlhf.engines.vllm.vllm_engine import VllmEngine

pytestmark = pytest.mark.engine

os.environ.update(engine_environment("cpu") | {"OMP_NUM_THREADS": "1"})

TOLERANCE = 1e-4
"""Of a log-prob at temperature 1 and above. Below, logits are divided by it, and what rounding did to them grows."""
STOP = 40
HOSTILE = {"do_sample": True, "top_k": 1, "temperature": 0.1, "repetition_penalty": 2.0, "eos_token_id": [2, 50, 51]}


@dataclass(frozen=True)
class Served:
    """An engine, and the same weights in transformers."""

    worker: EngineWorker
    model: PreTrainedModel

    def answer(self, *requests: GenerateRequest) -> list[Completion]:
        self.worker.submit(requests)
        return self.wait_for(requests)

    def wait_for(self, requests: tuple[GenerateRequest, ...]) -> list[Completion]:
        replies = collect(self.worker, len(requests))
        assert all(isinstance(reply, Completion) for reply in replies.values()), replies
        return [replies[request.id] for request in requests]

    def logprobs(self, token_ids: np.ndarray, temperature: float = 1.0) -> torch.Tensor:
        """`[T, vocabulary]`: log-probs of what follows each token."""
        with torch.no_grad():
            logits = self.model(torch.tensor(token_ids[None].astype(np.int64))).logits[0]
        return torch.log_softmax(logits / temperature, dim=-1)

    def assert_logprobs_of(self, prompt: np.ndarray, reply: Completion, temperature: float) -> None:
        whole = np.concatenate([prompt, reply.token_ids])
        expected = self.logprobs(whole, temperature)[len(prompt) - 1 : -1]
        expected = expected.gather(-1, torch.tensor(reply.token_ids[:, None].astype(np.int64)))[:, 0]
        assert np.abs(expected.numpy() - reply.behaviour_logprobs).max() < TOLERANCE / min(temperature, 1.0)


def collect(worker: EngineWorker, count: int) -> dict[str, Completion | RefusedRequest]:
    replies: dict[str, Completion | RefusedRequest] = {}
    deadline = time.monotonic() + scaled(60)
    while len(replies) < count and time.monotonic() < deadline:
        replies |= ended(worker.collect(1.0))
    return replies


def tokens(seed: int, length: int = 9) -> np.ndarray:
    return np.random.default_rng(seed).integers(60, 250, length).astype(np.int32)


def request(
    name: str, *, seed: int = 0, temperature: float = 1.0, max_tokens: int = 12, length: int = 9
) -> GenerateRequest:
    return GenerateRequest(name, tokens(seed, length), temperature, max_tokens, seed)


def served(folder: Path, architecture: str, tied: bool) -> Served:
    config = TinyModelConfig(
        architecture=architecture,
        hidden_size=64,
        intermediate_size=128,
        heads=2,
        kv_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
    )
    save_tiny(config, 0, folder)
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(HOSTILE))
    settings = made_settings(folder, stop_token_ids=(STOP,), kv_cache_megabytes=32, max_sequences=32)
    worker = EngineWorker("engine-0", settings)
    worker.start()
    return Served(worker, model.double())


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    engine = served(tmp_path_factory.mktemp("model"), "qwen2", True)
    yield engine
    engine.worker.close()


@pytest.fixture(scope="module", params=[None, ("llama", False), pytest.param(("qwen3", True), marks=pytest.mark.slow)])
def any_shape(
    request: pytest.FixtureRequest, engine: Served, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """The engine of the other tests, or one of another architecture, tied or not."""
    other = served(tmp_path_factory.mktemp("model"), *request.param) if request.param else None
    yield other or engine
    if other:
        other.worker.close()


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_logprobs_are_those_of_the_whole_distribution_sampled_from(any_shape: Served, temperature: float) -> None:
    """Also with a hostile generation_config.json, which would cut the distribution to one token."""
    requests = [request(f"r{n}", seed=n, temperature=temperature, length=3 + n) for n in range(12)]
    for asked, reply in zip(requests, any_shape.answer(*requests), strict=True):
        any_shape.assert_logprobs_of(asked.token_ids, reply, temperature)


def test_scores_are_those_of_a_forward_pass(any_shape: Served) -> None:
    ids = tokens(5, 60)
    expected = any_shape.logprobs(ids)[:-1].gather(-1, torch.tensor(ids[1:, None].astype(np.int64)))[:, 0]
    for _ in range(2):
        assert np.abs(any_shape.worker.token_logprobs(ids).logprobs - expected.numpy()).max() < TOLERANCE


def test_greedy_is_the_argmax_of_every_step(any_shape: Served) -> None:
    (reply,) = any_shape.answer(request("greedy", temperature=0))
    whole = np.concatenate([tokens(0), reply.token_ids])
    expected = any_shape.logprobs(whole)[len(tokens(0)) - 1 : -1].argmax(-1)
    assert reply.token_ids.tolist() == expected.tolist()
    any_shape.assert_logprobs_of(tokens(0), reply, 1.0)


def test_a_reply_ends_at_a_stop_token_that_it_includes_or_at_its_budget(engine: Served) -> None:
    replies = engine.answer(*(request(f"r{n}", seed=n, temperature=1.5, max_tokens=100) for n in range(24)))
    stopped = [reply for reply in replies if reply.finish_reason is FinishReason.STOP]
    assert stopped
    assert all(reply.token_ids[-1] == STOP and STOP not in reply.token_ids[:-1] for reply in stopped)
    cut = [reply for reply in replies if reply.finish_reason is FinishReason.LENGTH]
    assert cut
    assert all(len(reply.token_ids) == 100 and STOP not in reply.token_ids for reply in cut)
    assert all(len(r.token_ids) == len(r.behaviour_logprobs) == len(r.versions) for r in replies)
    generated = set(np.concatenate([reply.token_ids for reply in replies]).tolist())
    assert generated & {2, 50, 51}, "the hostile file's end tokens end nothing"


def test_the_same_request_gives_the_same_reply_whatever_runs_beside_it(engine: Served) -> None:
    (alone,) = engine.answer(request("alone", seed=3))
    beside = [request(f"r{n}", seed=100 + n, length=4 + n) for n in range(20)]
    *_, crowded = engine.answer(*beside, request("crowded", seed=3))
    assert crowded.token_ids.tolist() == alone.token_ids.tolist()
    assert crowded.behaviour_logprobs.tobytes() == alone.behaviour_logprobs.tobytes()


def test_what_another_engine_goes_on_with_is_what_the_first_would_have_said(
    engine: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf.engines.vllm.vllm_engine.PROGRESS_SECONDS", 0.0)
    asked = request("whole", seed=3, max_tokens=40)
    engine.worker.submit([asked])
    arrived: list[SampledTokens] = []
    while not isinstance((reply := engine.worker.collect(scaled(30)))[-1][1], Completion):
        arrived += [part for _, part in reply if isinstance(part, SampledTokens)]
    whole = reply[-1][1]
    said = len(whole.token_ids)
    assert len(arrived) > said // 2
    for column in ("token_ids", "behaviour_logprobs", "versions"):
        parts = np.concatenate([getattr(part, column) for part in arrived])
        assert parts.tobytes() == getattr(whole, column)[: len(parts)].tobytes()
    monkeypatch.undo()
    for had in (1, said // 2, said - 1):
        prompt = np.concatenate([asked.token_ids, whole.token_ids[:had]])
        (rest,) = engine.answer(GenerateRequest(f"rest-{had}", prompt, 1.0, 40 - had, 3, sampled=had))
        assert rest.token_ids.tolist() == whole.token_ids[had:].tolist()
        assert rest.behaviour_logprobs.tobytes() == whole.behaviour_logprobs[had:].tobytes()


def test_a_prompt_that_is_too_long_is_refused_at_once_and_others_are_answered(engine: Served) -> None:
    too_long, fine = request("long", length=128), request("fine")
    engine.worker.submit([too_long, fine])
    replies = collect(engine.worker, 2)
    assert replies["long"] == RefusedRequest("a prompt of 128 tokens leaves no room for a reply in a context of 128")
    assert isinstance(replies["fine"], Completion)
    with pytest.raises(ValueError, match="engine-0 cannot give log-probs: a prompt of 128 tokens"):
        engine.worker.token_logprobs(tokens(0, 128))


def test_a_reply_that_is_cut_off_comes_back_with_what_was_said_and_is_the_beginning_of_the_whole(
    engine: Served,
) -> None:
    seed, whole = next(
        (n, reply)
        for n in range(20)
        if len((reply := engine.answer(request(f"whole{n}", seed=n, max_tokens=119))[0]).token_ids) > 100
    )
    long = request("slow", seed=seed, max_tokens=119)
    engine.worker.submit([long])
    deadline = time.monotonic() + 30
    while engine.worker._thread.run(spoken, awaited="spoken", timeout_seconds=5) < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    engine.worker.cut_off(["slow", "never heard of"])
    (cut,) = engine.wait_for((long,))
    assert cut.finish_reason is FinishReason.TIME
    assert 5 <= len(cut.token_ids) < len(whole.token_ids)
    assert cut.token_ids.tolist() == whole.token_ids[: len(cut.token_ids)].tolist()
    assert cut.behaviour_logprobs.tobytes() == whole.behaviour_logprobs[: len(cut.token_ids)].tobytes()
    assert cut.versions.tolist() == [UNPUBLISHED] * len(cut.token_ids)
    engine.worker.cut_off(["slow"])
    assert collect(engine.worker, 0) == {}, "what has ended is not touched"
    assert isinstance(engine.answer(request("after"))[0], Completion)


def spoken(engine: VllmEngine) -> int:
    """Tokens that the only request in flight has said."""
    (reply,) = engine._unfinished.values()
    return len(reply.token_ids)


def test_a_request_that_is_aborted_is_not_heard_of_again(engine: Served) -> None:
    engine.worker.submit([request("given-up", max_tokens=100), request("kept")])
    engine.worker.abort(["given-up"])
    assert "given-up" not in collect(engine.worker, 1)


def test_a_pause_keeps_every_request_and_every_token(engine: Served) -> None:
    """Requests under way and one that comes during the pause give what they give without a pause."""
    requests = tuple(request(f"r{n}", seed=n, max_tokens=60) for n in range(8))
    expected = engine.answer(*requests)
    engine.worker.submit(requests[:7])
    engine.worker.prepare(Manifest(tensors=()))
    engine.worker.submit(requests[7:])
    assert ended(engine.worker.collect(0.3)) == {}
    engine.worker.resume()
    for before, after in zip(expected, engine.wait_for(requests), strict=True):
        assert after.token_ids.tolist() == before.token_ids.tolist()
        assert np.abs(after.behaviour_logprobs - before.behaviour_logprobs).max() < TOLERANCE


def test_a_canary_is_answered_in_the_pause_while_requests_wait_and_each_token_has_its_version(engine: Served) -> None:
    ids, requests = tokens(9, 30), tuple(request(f"r{n}", seed=n, max_tokens=80) for n in range(4))
    before = engine.worker.token_logprobs(ids).logprobs
    engine.worker.submit(requests)
    time.sleep(0.02)
    engine.worker.prepare(Manifest(tensors=()))
    engine.worker.commit(5)
    assert np.array_equal(engine.worker.token_logprobs(ids).logprobs, before)
    assert ended(engine.worker.collect(0.2)) == {}
    engine.worker.resume()
    for reply in engine.wait_for(requests):
        first = int((reply.versions == UNPUBLISHED).sum())
        assert reply.versions.tolist() == [UNPUBLISHED] * first + [5] * (len(reply.versions) - first)
        assert reply.versions[-1] == 5


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[Callable[..., EngineWorker]]:
    made: list[EngineWorker] = []
    save_tiny(TinyModelConfig(hidden_size=64, heads=2), 0, tmp_path)

    def make(**settings: object) -> EngineWorker:
        made.append(EngineWorker("engine-1", made_settings(tmp_path, kv_cache_megabytes=16, **settings)))
        made[-1].start()
        return made[-1]

    yield make
    for worker in made:
        worker.close()


def test_a_reply_ends_with_a_text_and_a_step_that_raises_fails_the_requests_under_way_by_name(
    make_engine: Callable[..., EngineWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last token is the one that makes the text."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), byte_tokenizer()
    prompt, said, place = next(pairs_said(model, tokenizer))
    worker = make_engine(stop=(tokenizer.decode(said[place : place + 2]),))
    worker.submit([GenerateRequest("said", prompt, 0, len(said), 0), GenerateRequest("cut", prompt, 0, place + 1, 0)])
    begun = np.concatenate([prompt, said[: place + 1]]).astype(np.int32)
    worker.submit([GenerateRequest("rest", begun, 0, len(said), 0, sampled=place + 1)])
    replies = collect(worker, 3)
    assert replies["rest"].token_ids.tolist() == [said[place + 1]], "half of the text was sampled elsewhere"
    assert [replies[name].finish_reason for name in ("said", "cut")] == [FinishReason.STOP, FinishReason.LENGTH]
    assert replies["said"].token_ids.tolist() == said[: place + 2]
    assert len(replies["said"].behaviour_logprobs) == len(replies["said"].versions) == place + 2

    def fall_over() -> None:
        raise MemoryError("no memory for the logits")

    worker._thread.run(
        lambda engine: monkeypatch.setattr(engine, "_step", fall_over), awaited="fault", timeout_seconds=5
    )
    worker.submit([request("r0"), request("r1")])
    replies = collect(worker, 2)
    assert {reply.detail for reply in replies.values()} == {"a step failed with MemoryError: no memory for the logits"}


def pairs_said(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[np.ndarray, list[int], int]]:
    """Prompts, the greedy replies to them, and the place in each of two letters that did not follow one another
    before."""
    for seed in range(100):
        prompt = tokens(seed)
        whole = model.generate(torch.tensor(prompt[None].astype(np.int64)), max_new_tokens=12, do_sample=False)
        said = whole[0, len(prompt) :].tolist()
        for place in range(1, len(said) - 1):
            text = tokenizer.decode(said[place : place + 2])
            if len(text) == 2 and text.isascii() and text not in tokenizer.decode(said[: place + 1]):
                yield prompt, said, place


def test_a_phase_that_fails_leaves_an_engine_that_serves_no_more(make_engine: Callable[..., EngineWorker]) -> None:
    torch.manual_seed(11)
    expected, set_num_threads = torch.get_rng_state(), torch.set_num_threads
    worker = make_engine()
    assert torch.equal(torch.get_rng_state(), expected), "the process keeps its random state, threads and dtype"
    assert torch.set_num_threads is set_num_threads
    assert torch.get_default_dtype() is torch.float32
    worker.submit([request("under-way", max_tokens=200)])
    with pytest.raises(EngineBroken, match=r"engine-1 is in an unknown state .* receive failed with RuntimeError"):
        worker.receive({"names": []})
    assert collect(worker, 1)["under-way"] == RefusedRequest(worker._cause, broken=True)
    worker.submit([request("later")])
    assert collect(worker, 1)["later"] == RefusedRequest(worker._cause, broken=True)
    for ask in (worker.resume, lambda: worker.commit(1), lambda: worker.token_logprobs(tokens(0))):
        with pytest.raises(EngineBroken, match="receive failed"):
            ask()


def test_settings_that_vllm_refuses_are_the_users_to_put_right(make_engine: Callable[..., EngineWorker]) -> None:
    with pytest.raises(ModelError, match=r"^engine-1: vllm .* cannot run qwen2 on a CPU: .*max_model_len"):
        make_engine(max_context_tokens=100_000)
