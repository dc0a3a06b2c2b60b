"""A recording answers without a server, failures included."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from rlhf.errors import HttpFailed, RecordingError
from rlhf.http.client import HttpClient
from rlhf.http.config import HttpConfig, RecordingConfig
from rlhf.http.recording import RecordedFailure, Recorder, Replay
from tests.pace import scaled
from tests.servers import DROP, HANG, Asked, Reply, response, scripted

CONFIG = HttpConfig(attempts=2, initial_backoff_seconds=0.001, max_backoff_seconds=0.001)


def client(url: str, path: Path, mode: str) -> HttpClient:
    recording = RecordingConfig(path=str(path), mode=mode)  # type: ignore[arg-type]
    return HttpClient(url, CONFIG, timeout_seconds=scaled(1), token="secret", recording=recording)


async def answers(asking: HttpClient, *bodies: Any) -> list[Any]:
    found: list[Any] = []
    for body in bodies:
        try:
            found.append(await asking.post("/score", body))
        except HttpFailed as failure:
            found.append(failure.kind)
    await asking.close()
    return found


def moody(asked: Asked) -> Reply:
    """Every answer is another one, and some are none."""
    moody.count += 1  # type: ignore[attr-defined]
    faults: dict[str, Reply] = {"hang": HANG, "drop": DROP, "no": (500, "no"), "bytes": response(200, b"\xff")}
    return faults.get(asked.json["text"], (200, {"count": moody.count, "text": "é"}))  # type: ignore[attr-defined]


BODIES = [{"text": text} for text in ("a", "hang", "a", "drop", "no", "bytes", "b", "a")]


async def test_a_run_repeats_offline_answer_by_answer_and_failure_by_failure(tmp_path: Path) -> None:
    moody.count = 0  # type: ignore[attr-defined]
    async with scripted(moody) as server:
        recorded = await answers(client(server.url, tmp_path / "tape", "record"), *BODIES)
    assert [one if isinstance(one, str) else "answer" for one in recorded] == [
        *("answer", "timeout", "answer", "lost", "server", "protocol", "answer", "answer")
    ]
    assert await answers(client(server.url, tmp_path / "tape", "replay"), *BODIES) == recorded


async def test_a_request_that_was_not_recorded_is_an_error_by_name(tmp_path: Path) -> None:
    async with scripted(lambda asked: (200, 1)) as server:
        await answers(client(server.url, tmp_path / "tape", "record"), {"text": "a"})
    assert "secret" not in (tmp_path / "tape").read_text()
    asking = client(server.url, tmp_path / "tape", "replay")
    assert await asking.post("/score", {"text": "a"}) == 1
    with pytest.raises(RecordingError, match=r"no answer left to .*POST.*/score"):
        await asking.post("/score", {"text": "a"})
    with pytest.raises(RecordingError, match="requests differ"):
        await asking.post("/score", {"text": "b"})
    await asking.close()


def test_equal_requests_get_their_answers_in_order_and_failures_keep_their_names(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "tape")
    recorder.answered({"a": (1, 2), "b": "\ud800"}, "first")
    recorder.failed({"b": "\ud800", "a": [1, 2]}, "lost", "the connection broke")
    recorder.close()
    recorder.answered({}, "an episode that ended after the run")
    replay = Replay(tmp_path / "tape")
    assert replay.answer({"b": "\ud800", "a": (1, 2)}) == "first"
    with pytest.raises(RecordedFailure, match="lost: the connection broke"):
        replay.answer({"a": [1, 2], "b": "\ud800"})
    with pytest.raises(RecordingError, match="no answer left"):
        replay.answer({})
    assert stat.S_IMODE((tmp_path / "tape").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("mode", "content", "message"),
    [
        ("record", "", "exists already"),
        ("replay", None, "no such recording.* record it"),
        ("replay", "{", "is not a recording.* record it"),
    ],
)
async def test_a_recording_is_never_written_over_and_one_that_cannot_be_played_says_what_to_do(
    tmp_path: Path, mode: str, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "tape").write_text(content)
    with pytest.raises(RecordingError, match=message):
        await client("http://127.0.0.1:9", tmp_path / "tape", mode).post("/", {})
