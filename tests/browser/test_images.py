"""The page shows the images of an episode where the model saw them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from rlhf.apps.dashboard.app import dashboard_app
from rlhf.apps.dashboard.library import Library, find_runs
from tests.browser.watched import Watched
from tests.runs.made_run import made_run
from tests.runs.seen_images import IMAGE, PLACE, seeing_group
from tests.runs.test_image_files import written
from tests.servers import running

SHOWN = "one => [one.naturalWidth, one.naturalHeight]"


@pytest.fixture
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    run = made_run(tmp_path_factory.mktemp("seeing") / "run", [{"reward/mean": 1.0}])
    (run / "owner").mkdir()
    (run / "recipe.yaml").write_text("name: made\ntrainer: {proximal_logprobs: sampled, loss: {policy: mine}}\n")
    written(run, seeing_group())
    with running(dashboard_app(Library(find_runs([run])))) as url:
        yield url


def test_an_image_is_shown_before_the_text_with_its_tokens(page: Watched, seeing: str) -> None:
    shown = page.open(seeing, "episode", run="run", ordinal=0, sample=0, version=0)
    asked = shown.locator(".message.user")
    expect(asked).to_have_text(f"usertokens {PLACE} to {PLACE + 2}dark?")
    image = asked.locator("img")
    expect(image).to_be_visible()
    expect(image).to_have_attribute("title", IMAGE.sha256)
    assert image.evaluate(SHOWN) == [30, 20]
