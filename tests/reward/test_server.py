"""A reward behind HTTP speaks every shape, and never invents a number."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from rlhf.config import build
from rlhf.http.binding import Access, HttpLimits
from rlhf.reward.config import RewardConfig
from rlhf.reward.reward import make_reward
from rlhf.reward.server import RewardServerSettings, reward_app
from rlhf.types import Scored, Task, Trajectory, Unscored
from tests.pace import scaled
from tests.reward.asked import scored
from tests.servers import running

BROKEN = Unscored(kind="timeout", detail="killed after 10 s")


class Measuring:
    """The length of a reply; a reply that says `break` cannot be scored, one that says `wait` takes its time."""

    def __init__(self) -> None:
        self.groups: list[tuple[str, str | None, int]] = []
        self.inside = self.most_inside = 0

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        self.groups.append((task.messages[0].content, task.answer, len(trajectories)))
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        try:
            if any(trajectory.response == "wait" for trajectory in trajectories):
                await asyncio.sleep(0.3)
        finally:
            self.inside -= 1
        return [
            BROKEN if trajectory.response == "break" else Scored(value=float(len(trajectory.response)))
            for trajectory in trajectories
        ]


SMALL = Access(limits=HttpLimits(body_bytes=10_000))
SETTINGS = RewardServerSettings(name="measuring", capacity=2, waiting=2, timeout_seconds=5, access=SMALL)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(reward_app(Measuring(), SETTINGS)) as url:
        yield url


def post(url: str, path: str, body: Any, **headers: str) -> httpx.Response:
    return httpx.post(url + path, json=body, headers=headers, timeout=scaled(10))


def test_openrlhf_reads_lists(url: str) -> None:
    body = {"query": ["pa", "pabc"], "prompts": ["p", "p"], "labels": ["x", "x"]}
    answer = post(url, "/get_reward", body)
    assert answer.status_code == 200
    assert answer.json() == {"rewards": [1.0, 3.0], "scores": [1.0, 3.0], "extra_logs": {}}


def test_slime_reads_a_number(url: str) -> None:
    assert post(url, "/", {"prompt": "p", "response": "abcd", "label": 7}).json() == 4.0


def test_vllm_reads_its_own_shapes(url: str) -> None:
    texts = {"model": "m", "input": ["a", "abc"], "use_activation": False}
    assert post(url, "/classify", texts).json()["data"] == [
        {"index": 0, "label": "LABEL_0", "probs": [1.0], "num_classes": 1},
        {"index": 1, "label": "LABEL_0", "probs": [3.0], "num_classes": 1},
    ]
    assert post(url, "/pooling", {"input": "ab"}).json()["data"] == [{"index": 0, "object": "pooling", "data": [2.0]}]
    answer = post(url, "/score", {"model": "m", "text_1": "p", "text_2": ["a", "ab"]}).json()
    assert answer["data"] == [{"index": n, "object": "score", "score": n + 1.0} for n in (0, 1)]
    assert (answer["object"], answer["model"]) == ("list", "m")


@pytest.mark.parametrize("shape", ["openrlhf", "slime", "vllm_classify", "vllm_pooling", "vllm_score"])
async def test_our_client_reads_our_server_in_every_shape(url: str, shape: str) -> None:
    config = build(RewardConfig, {"kind": "remote", "remote": {"url": url, "api": shape}})
    reward = make_reward(config)
    await reward.start()
    scores = [score.value for score in await scored(reward, "a", "abc") if isinstance(score, Scored)]
    prompt = len("What is 6 times 7?") if shape in ("vllm_classify", "vllm_pooling") else 0
    assert scores == [prompt + 1.0, prompt + 3.0]


async def test_a_failure_keeps_its_name_on_the_way_to_our_client_and_harms_no_neighbour(url: str) -> None:
    config = build(RewardConfig, {"kind": "remote", "remote": {"url": url}})
    good, broken = await scored(make_reward(config), "abc", "break")
    assert good == Scored(value=3.0, parts={"remote": 3.0})
    assert broken == BROKEN


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/get_reward", {"query": ["a", "break"]}),
        ("/", {"response": "break"}),
        ("/classify", {"input": ["break"]}),
        ("/pooling", {"input": "break"}),
        ("/score", {"text_1": "p", "text_2": "break"}),
    ],
)
def test_other_clients_get_an_error_that_names_the_failure_and_no_number(url: str, path: str, body: Any) -> None:
    answer = post(url, path, body)
    assert answer.status_code == 422
    assert answer.json()["error"]["type"] == "unscored"
    assert "timeout: killed after 10 s" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("/get_reward", b'{"query": []}', 422),
        ("/get_reward", b'{"query": "text"}', 422),
        ("/get_reward", b'{"query": ["a"], "prompts": ["p", "q"]}', 422),
        ("/get_reward", b'{"query": [1]}', 422),
        ("/get_reward", b'{"query": ["a"], "labels": [NaN]}', 422),
        ("/get_reward", b"{", 422),
        ("/get_reward", b"\xff", 400),
        ("/get_reward", b"", 422),
        # Too deep for the parser, until Python 3.13, which reads on to the end that is missing.
        ("/get_reward", b"[" * 9_000, 400 if sys.version_info < (3, 13) else 422),
        ("/get_reward", b'{"query": ["' + b"a" * 10_000 + b'"]}', 413),
        ("/", b'{"prompt": "p"}', 422),
        ("/", b"null", 422),
        ("/classify", b'{"input": [[1, 2]]}', 422),
        ("/classify", b'{"input": [[1, -2]]}', 422),
        ("/pooling", b'{"input": [[4294967296]]}', 422),
        ("/pooling", b'{"input": []}', 422),
        ("/score", b'{"text_1": ["p", "q"], "text_2": ["a", "b", "c"]}', 422),
        ("/nowhere", b"{}", 404),
    ],
)
def test_bad_input_is_a_clear_answer_and_the_server_goes_on(url: str, path: str, content: bytes, status: int) -> None:
    answer = httpx.post(url + path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "code"}
    assert len(answer.text) < 500
    assert post(url, "/", {"response": "a"}).json() == 1.0


def test_text_that_cannot_be_encoded_is_a_reply_as_any_other(url: str) -> None:
    content = b'{"query": ["\\ud800"]}'
    answer = httpx.post(url + "/get_reward", content=content, headers={"content-type": "application/json"})
    assert answer.json()["rewards"] == [1.0]


def test_a_model_s_name_that_cannot_be_encoded_comes_back_as_it_was(url: str) -> None:
    content = b'{"model": "\\ud800", "input": ["a"]}'
    answer = httpx.post(url + "/classify", content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["model"]) == (200, "\ud800")


def test_errors_are_described_with_their_body(url: str) -> None:
    assert "RewardErrorBody" in httpx.get(f"{url}/openapi.json").json()["components"]["schemas"]


def test_health_states_the_capacity(url: str) -> None:
    assert httpx.get(url + "/health").json() == {"status": "healthy", "reward": "measuring", "capacity": 2}


def test_replies_to_one_question_are_a_group() -> None:
    reward = Measuring()
    with running(reward_app(reward, SETTINGS)) as url:
        post(url, "/get_reward", {"query": ["pa", "pb", "qa"], "prompts": ["p", "p", "q"], "labels": [1, 1, 1]})
    assert reward.groups == [("p", "1", 2), ("q", "1", 1)]


def test_the_end_of_turn_is_cut_from_a_reply() -> None:
    settings = RewardServerSettings(name="exact", stop_texts=("<|im_end|>",))
    with running(reward_app(make_reward(RewardConfig(kind="exact")), settings)) as url:
        body = {"query": ["6*7=42<|im_end|>", "6*7=<|im_end|>42"], "prompts": ["6*7="] * 2, "labels": ["42"] * 2}
        assert post(url, "/get_reward", body).json()["rewards"] == [1.0, 0.0]


async def test_no_more_is_scored_at_once_than_the_capacity_and_more_than_can_wait_is_turned_away() -> None:
    reward = Measuring()
    with running(reward_app(reward, SETTINGS)) as url:
        async with httpx.AsyncClient(timeout=scaled(10)) as client:
            asked = [client.post(url, json={"response": "wait"}) for _ in range(8)]
            answers = await asyncio.gather(*asked)
    statuses = sorted(answer.status_code for answer in answers)
    assert set(statuses) == {200, 503}
    assert statuses.count(200) >= SETTINGS.capacity + SETTINGS.waiting
    assert all(answer.headers["retry-after"] == "1" for answer in answers if answer.status_code == 503)
    assert reward.most_inside == SETTINGS.capacity


def test_an_answer_comes_before_its_deadline_or_is_an_error() -> None:
    settings = RewardServerSettings(name="slow", timeout_seconds=0.05)
    with running(reward_app(Measuring(), settings)) as url:
        answer = post(url, "/", {"response": "wait"})
    assert answer.status_code == 504
    assert answer.json()["error"]["type"] == "timeout"


def test_a_token_is_asked_for_and_health_is_free() -> None:
    with running(reward_app(Measuring(), SETTINGS, token="secret")) as url:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            assert post(url, "/", {"response": "a"}, **headers).status_code == 401
        assert post(url, "/", {"response": "a"}, Authorization="Bearer secret").json() == 1.0
        assert httpx.get(url + "/health").status_code == 200
        assert httpx.get(url + "/health", headers={"Authorization": "Bearer wrong"}).status_code == 401
