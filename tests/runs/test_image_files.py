"""Images of recorded episodes: each is one file, and episodes come back with what the model saw, or not at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf.apps.reports.episode_text import said_in
from rlhf.chat.image_reader import noise_image
from rlhf.errors import DataError
from rlhf.images import Image, ImageFeatures
from rlhf.runs.episode_parts import EpisodeParts, read_episodes
from rlhf.runs.episode_records import ended_in_flight
from rlhf.runs.image_files import image_file, with_features, write_images
from rlhf.runs.recorded_episodes import recorded_groups
from rlhf.runs.records import as_row, record_of_row
from rlhf.types import Group
from tests.runs.seen_images import IMAGE, PLACE, features_of, seeing_group

NAME = f"{IMAGE.sha256}.png"


def written(folder: Path, *groups: Group) -> Path:
    """The folder of the parts in a run folder."""
    writer = EpisodeParts(folder / "episodes")
    for group in groups:
        writer.add(ended_in_flight(group.ticket, group.task, len(group.samples), group))
        writer.cut()
    writer.close()
    return folder / "episodes"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return written(tmp_path, seeing_group(0), seeing_group(1))


def test_an_image_of_many_episodes_is_one_file_and_each_knows_its_hash_and_tokens(recorded: Path) -> None:
    (file,) = (recorded.parent / "images").iterdir()
    assert (file.name, file.read_bytes(), file.stat().st_mode & 0o077) == (NAME, IMAGE.data, 0)
    for record in map(record_of_row, map(as_row, read_episodes(recorded))):
        assert record.images == [
            {"segment": 0, "start": PLACE, "stop": PLACE + 3, "sha256": IMAGE.sha256, "file": f"images/{NAME}"}
        ]
        assert [message["images"] for message in record.prompt] == [[IMAGE.sha256]]
        assert said_in(as_row(record))[0] == ("user", f"[image images/{NAME}]dark?")


def test_without_images_nothing_is_added(tmp_path: Path) -> None:
    group = seeing_group()
    samples = [replace(one, trajectory=replace(one.trajectory, segments=())) for one in group.samples]
    plain = replace(group, task=replace(group.task, messages=()), samples=tuple(samples))
    parts = written(tmp_path, plain)
    assert [one.images for one in read_episodes(parts)] == [None] * 3
    assert not (tmp_path / "images").exists()


def test_episodes_come_back_with_what_the_model_saw(recorded: Path) -> None:
    for group, recalled in zip((seeing_group(0), seeing_group(1)), recorded_groups(recorded, sees=True), strict=True):
        again = with_features(recalled, recorded.parent / "images", features_of)
        assert again.task.messages == group.task.messages
        for one, other in zip(again.samples, group.samples, strict=True):
            (segment,), (expected,) = one.trajectory.segments, other.trajectory.segments
            (placed,), (own,) = segment.images, expected.images
            assert (placed.start, placed.stop, placed.features.checksum) == (own.start, own.stop, own.features.checksum)
            assert placed.features.image.data == IMAGE.data
            assert (segment.content_ids == expected.content_ids).all()


def test_images_are_refused_without_a_tower_and_a_lost_one_is_named(recorded: Path) -> None:
    with pytest.raises(DataError, match=r"has episodes with images, and the recipe no model\.tower; set model\.tower"):
        recorded_groups(recorded)
    (recorded.parent / "images" / NAME).unlink()
    with pytest.raises(DataError, match=f"the image {IMAGE.sha256} of recorded episodes is not in .*images"):
        recorded_groups(recorded, sees=True)


def test_another_content_or_another_processor_is_refused(recorded: Path) -> None:
    group, folder = recorded_groups(recorded, sees=True)[0], recorded.parent / "images"

    def other(image: Image) -> ImageFeatures:
        return replace(features_of(image), token_ids=(9, 9))

    with pytest.raises(DataError, match=f"{NAME} has 2 tokens by the model's processor, and other ones in its episode"):
        with_features(group, folder, other)
    (folder / NAME).write_bytes(IMAGE.data + b"x")
    with pytest.raises(DataError, match=f"{NAME} is not the image that the episodes saw"):
        with_features(group, folder, None)


@pytest.mark.parametrize("given", ["../recipe", IMAGE.sha256.upper(), IMAGE.sha256[:-1], ""])
def test_only_a_hash_names_a_file(recorded: Path, given: str) -> None:
    (recorded.parent / "images" / f"{given.replace('/', '')}.png").touch()
    assert image_file(recorded.parent / "images", given) is None


def test_threads_may_write_the_same_images(tmp_path: Path) -> None:
    images = [noise_image((width, 2)) for width in range(1, 41)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: write_images(tmp_path / "images", images), range(4)))
    assert {file.stem for file in (tmp_path / "images").iterdir()} == {image.sha256 for image in images}
