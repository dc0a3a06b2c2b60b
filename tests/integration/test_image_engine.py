"""Engine and learner see the same images, or the reply fails by name."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlhf.chat.image_reader import ImageReader, noise_image, tensors_checksum
from rlhf.chat.renderer import ChatRenderer
from rlhf.engines.known_images import KnownImages
from rlhf.engines.vllm import engine_images
from rlhf.engines.vllm.environment import engine_environment
from rlhf.engines.vllm.settings import GenerateRequest, RefusedRequest
from rlhf.errors import PolicyMismatch
from rlhf.images import IMAGE_MARK, Image, ImageFeatures, RowImages
from rlhf.models.config import TinyModelConfig
from rlhf.models.loading import load_policy, load_tokenizer
from rlhf.models.policy import PolicyModel, WholeRows
from rlhf.models.tiny import save_tiny
from rlhf.models.vision import Vision
from rlhf.rollout.context import Context
from rlhf.trainer.learner import RemoteLearner
from rlhf.types import Completion, Group, Message, Prompt, Sample, Scored, Task, Ticket, Trajectory
from tests.engines.vllm.made import ended
from tests.integration.learner_ranks import ProcessWorker
from tests.integration.test_image_learner import start
from tests.integration.torch_learner import ThreadedEngine

pytestmark = pytest.mark.engine
SIZES = ((56, 56), (84, 56), (56, 84))
SHARP = 40.0
"""What the tower says is made loud, so that its image decides what a random model says next."""


@pytest.fixture(scope="module")
def sees(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = TinyModelConfig(
        architecture="qwen3_vl", hidden_size=64, intermediate_size=128, max_position_embeddings=512
    )
    folder = str(save_tiny(config, 0, tmp_path_factory.mktemp("sees")))
    model, tokenizer = load_policy(folder), load_tokenizer(folder)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "merger" in name and name.endswith("linear_fc2.weight"):
                weight.mul_(SHARP)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def served(sees: str) -> Iterator[ThreadedEngine]:
    os.environ.update(engine_environment("cpu"))
    engine = ThreadedEngine(Path(sees), "float32", tower="frozen", max_context_tokens=512)
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def renderer(sees: str) -> ChatRenderer:
    return ChatRenderer(load_tokenizer(sees), images=ImageReader(sees))


def asked(renderer: ChatRenderer, *images: Image) -> Prompt:
    return renderer.prompt([Message(role="user", content=f"{IMAGE_MARK * len(images)}what?", images=images)])


def ask(
    engine: ThreadedEngine,
    prompts: Sequence[Prompt],
    change: Callable[[list[GenerateRequest], list[ImageFeatures]], Any] = lambda requests, images: None,
) -> list[Completion | RefusedRequest]:
    """What the engine answers to these prompts, sent as the controller sends them, except for a `change`."""
    known = KnownImages()
    requests = [
        GenerateRequest(str(n), one.token_ids, 1.0, 8, seed=n, images=known.asked_about(one.images))
        for n, one in enumerate(prompts)
    ]
    images, _ = known.sent_with(requests)
    engine.worker.submit([], (), [one.image.sha256 for one in images])
    change(requests, images)
    engine.worker.submit(requests, images)
    replies: dict[str, Any] = {}
    while len(replies) < len(requests):
        replies |= ended(engine.worker.collect(60))
    return [replies[str(n)] for n in range(len(requests))]


def test_replies_to_images_have_the_logprobs_of_the_learner(
    served: ThreadedEngine, renderer: ChatRenderer, sees: str
) -> None:
    shown = [noise_image(size) for size in SIZES]
    prompts = [asked(renderer, *images) for images in ((), shown[:1], shown[1:], shown, [shown[0], shown[0]])]
    learner = PolicyModel(load_policy(sees), WholeRows(Vision(frozen=True)))
    for prompt, reply in zip(prompts, ask(served, prompts), strict=True):
        assert isinstance(reply, Completion), reply
        ids = torch.from_numpy(np.concatenate([prompt.token_ids, reply.token_ids])).long()
        targets = torch.arange(len(prompt.token_ids), len(ids))
        starts = np.array([placed.start for placed in prompt.images], np.int64)
        rows = RowImages(images=tuple(placed.features for placed in prompt.images), starts=starts)
        with torch.no_grad():
            own, _ = learner(
                ids[None], torch.arange(len(ids))[None], targets - 1, targets, 1.0, images=rows if len(starts) else None
            )
        assert np.abs(own.numpy() - reply.behaviour_logprobs).max() < 1e-5


def test_an_image_that_the_controller_forgot_is_sent_again(served: ThreadedEngine, renderer: ChatRenderer) -> None:
    prompt = asked(renderer, noise_image((56, 56)))
    first, second = (ask(served, [prompt])[0] for _ in range(2))
    assert isinstance(first, Completion)
    assert isinstance(second, Completion)
    np.testing.assert_array_equal(first.token_ids, second.token_ids)


def resized(requests: list[GenerateRequest], images: list[ImageFeatures]) -> None:
    """The engine's side makes the image smaller."""
    other = READER[0].features(noise_image((28, 56)))
    images[0] = replace(images[0], tensors=other.tensors, size=other.size)


def swapped(requests: list[GenerateRequest], images: list[ImageFeatures]) -> None:
    """Two images of one size change their places."""
    one, other = images
    images[:] = [replace(one, tensors=other.tensors), replace(other, tensors=one.tensors)]


def lost(requests: list[GenerateRequest], images: list[ImageFeatures]) -> None:
    requests[0] = requests[0]._replace(images=requests[0].images[:-1])


def displaced(requests: list[GenerateRequest], images: list[ImageFeatures]) -> None:
    (place, *others) = requests[0].images
    requests[0] = requests[0]._replace(images=(place._replace(start=place.start + 1), *others))


READER: list[ImageReader] = []


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (resized, "the engine has other pixels than the learner for image"),
        (swapped, "the engine has other pixels than the learner for image"),
        (lost, r"the prompt has 8 tokens of images, and its 1 images are 4 of them"),
        (displaced, r"vLLM makes \d+ tokens of a prompt that has \d+ tokens for the learner"),
    ],
)
def test_an_image_that_is_not_the_learners_fails_the_reply_by_name(
    served: ThreadedEngine, renderer: ChatRenderer, sees: str, fault: Callable[..., None], told: str
) -> None:
    READER[:] = [ImageReader(sees)]
    pixels = noise_image((56, 56)), noise_image((57, 57))
    (reply,) = ask(served, [asked(renderer, *pixels)], fault)
    assert isinstance(reply, RefusedRequest)
    assert not reply.broken
    assert re.search(told, reply.detail), reply.detail
    assert all(isinstance(one, Completion) for one in ask(served, [asked(renderer, *pixels)]))


def test_placeholders_that_are_expanded_twice_fail_the_reply_by_name(
    served: ThreadedEngine, renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_images, "marked", lambda token_ids, images: token_ids)
    (reply,) = ask(served, [asked(renderer, noise_image((84, 56)))])
    assert isinstance(reply, RefusedRequest)
    assert "vLLM makes 37 tokens of a prompt that has 32 tokens for the learner" in reply.detail


def test_an_engine_that_resizes_images_itself_is_refused(
    served: ThreadedEngine, renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine_images.ready_image

    def halved(processor: Any, inputs: Any) -> Any:
        item, updates = real(processor, inputs)
        item["pixel_values"].data = item["pixel_values"].data / 2
        return item, updates

    monkeypatch.setattr(engine_images, "ready_image", halved)
    (reply,) = ask(served, [asked(renderer, noise_image((112, 56)))])
    assert isinstance(reply, RefusedRequest)
    assert "vLLM changes pixel_values of an image" in reply.detail


def test_a_learner_with_swapped_images_stops_before_the_first_step(
    served: ThreadedEngine, renderer: ChatRenderer, single: list[ProcessWorker], sees: str
) -> None:
    """Its tokens are the same: only the log-probs tell."""
    images = noise_image((56, 56)), noise_image((57, 57))
    prompts = [asked(renderer, images[n % 2]) for n in range(8)]
    replies = ask(served, prompts)
    groups = [group(n, prompts[2 * n : 2 * n + 2], replies[2 * n : 2 * n + 2]) for n in range(4)]
    learner = start(single, sees, 0, "frozen")
    learner = RemoteLearner(single, learner._config, plays=True)
    wrong = [
        group(n, [replace(own, images=other.images) for own, other in zip(pair, pair[::-1], strict=True)], said)
        for n in range(4)
        for pair, said in [(prompts[2 * n : 2 * n + 2], replies[2 * n : 2 * n + 2])]
    ]
    with pytest.raises(PolicyMismatch, match="all of these have images: the learner may see other pixels than the eng"):
        asyncio.run(learner.update(wrong))
    assert asyncio.run(learner.update(groups)).metrics["optimizer/steps"] == 1


def group(number: int, prompts: Sequence[Prompt], replies: Sequence[Any]) -> Group:
    samples, task = [], Task(id=str(number), messages=())
    for place, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        context = Context(prompt)
        context.append_reply(replace(reply, versions=np.zeros_like(reply.versions)))
        context.end()
        trajectory = Trajectory(task=task, segments=(context.segment(),), status="terminated")  # type: ignore[arg-type]
        samples.append(Sample(trajectory=trajectory, score=Scored(value=float(place))))
    return Group(ticket=Ticket(ordinal=number, version=0), task=task, samples=tuple(samples))


def test_the_checksum_of_tensors_reads_shapes_too() -> None:
    flat = np.zeros(4, np.float32)
    assert tensors_checksum([flat]) != tensors_checksum([flat.reshape(2, 2)])
