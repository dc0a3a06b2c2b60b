"""`rlhf export --push-to-hub` against a small server in the hub's place."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rlhf.apps.cli.export import run_export
from rlhf.errors import CheckpointError, UserError

PAGE = "https://huggingface.co/owner/sorter"


class Hub(BaseHTTPRequestHandler):
    asked: ClassVar[list[tuple[str, list[dict[str, Any]]]]]

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append((self.path, [json.loads(line) for line in content.splitlines()]))
        told = {
            "/api/repos/create": (200, {"url": PAGE, "name": "owner/sorter"}),
            "/api/validate-yaml": (200, {"warnings": [], "errors": []}),
            "/api/models/owner/sorter/preupload/main": (200, {"files": [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in self.asked[-1][1][0].get("files", ())
            ]}),
            "/api/models/owner/sorter/commit/main": (200, {"commitUrl": f"{PAGE}/commit/c0", "commitOid": "c0"}),
        }  # fmt: skip
        status, body = told[self.path] if self.headers["Authorization"] == "Bearer right" else (401, {})
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *words: object) -> None: ...


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    class Mine(Hub):
        asked: ClassVar = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Mine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "right")
    yield Mine
    server.shutdown()
    server.server_close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"dtype": "float32"}')
    return tmp_path / "model"


def test_a_push_makes_a_private_repository_and_sends_every_file(
    hub: type[Hub], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_export(model, tmp_path / "out", dtype="bfloat16", push_to_hub="owner/sorter") == 0
    (made,) = dict(hub.asked)["/api/repos/create"]
    assert (made["name"], made["organization"], made["visibility"]) == ("sorter", "owner", "private")
    _, file = dict(hub.asked)["/api/models/owner/sorter/commit/main"]
    assert base64.b64decode(file["value"]["content"]) == b'{"dtype": "bfloat16"}'
    assert "owner/sorter: pushed" in capsys.readouterr().out


def test_a_refused_push_keeps_the_folder_and_says_how_to_go_on(
    hub: type[Hub], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with pytest.raises(UserError, match=r"(?s)is whole, but .*hf auth login.*hf upload owner/sorter .*out"):
        run_export(model, tmp_path / "out", push_to_hub="owner/sorter")
    assert (tmp_path / "out" / "config.json").is_file()


def test_a_run_without_adapters_has_none_to_export(tmp_path: Path) -> None:
    checkpoint = tmp_path / "version-000001"
    (checkpoint / "huggingface").mkdir(parents=True)
    manifest = {"version": 1, "next_ordinal": 1, "outstanding": [], "files": {}, "format": 1}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"has no adapter/; a run writes it with model\.lora"):
        run_export(checkpoint, tmp_path / "out", adapter=True)
