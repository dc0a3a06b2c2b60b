"""Chromium of Debian, a page that nothing may go wrong on, and the runs that it shows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.browser.runs import LIVE, train_later
from tests.commanded import commanded
from tests.end_to_end.running import ROOT, warm_environment
from tests.pace import scaled
from tests.warm import client as warm

if find_spec("playwright"):
    from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright

    from tests.browser.watched import CHROMIUM, Watched
else:  # only the environment of `make test-browser` has it
    collect_ignore_glob = ["test_*.py"]

KEPT = "RLHF_BROWSER_RUNS"
"""The environment variable with a folder of these runs, for whoever writes a test and does not wait for training."""
WAIT_MILLISECONDS = 1000 * scaled(10)
START_SECONDS = scaled(120)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@dataclass(frozen=True, kw_only=True)
class Training:
    """A quickstart in another process."""

    folder: Path
    process: warm.WarmProcess
    cache: Path


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """A quickstart that trains beside the tests; its folder is that of a run when they begin."""
    folder, cache = tmp_path_factory.mktemp("runs") / "quickstart", tmp_path_factory.mktemp("models")
    words = ("-m", "rlhf", "train", LIVE.file, f"run.dir={folder}", f"model.cache_dir={cache}", *LIVE.overrides)
    with (folder.parent.parent / "quickstart.log").open("w") as log:
        process = warm.start(words, environment=warm_environment(), folder=ROOT, stdout=log, stderr=log)
    yield Training(folder=folder, process=process, cache=cache)
    process.terminate()
    process.wait(START_SECONDS)


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest) -> Path:
    """A folder with the ended quickstart and all other runs."""
    if kept := os.environ.get(KEPT):
        return Path(kept)
    quickstart: Training = request.getfixturevalue("quickstart")
    assert quickstart.process.wait(START_SECONDS) == 0
    train_later(quickstart.folder.parent, quickstart.cache)
    return quickstart.folder.parent


@pytest.fixture(scope="session")
def url(runs: Path) -> Iterator[str]:
    """Where `rlhf view` shows the ended runs."""
    with commanded(runs, command="view") as (address, _):
        yield address


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=WAIT_MILLISECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # as root
        yield browser
        browser.close()


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(WAIT_MILLISECONDS)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Watched]:
    """A page. At the end nothing of it has failed or called for something elsewhere."""
    watched = Watched(context.new_page())
    yield watched
    assert watched.faults == []
