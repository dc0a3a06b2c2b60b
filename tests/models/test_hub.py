"""A model of the hub is downloaded by one process of a node, while the others wait for it."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pace import scaled

NAME, WEIGHTS, COMMIT, PROCESSES = "model.safetensors", os.urandom(2**16), "c" * 40, 3
PROGRAM = "import huggingface_hub as h; print(h.snapshot_download('owner/model'))"


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub with one model of one file, which takes a second to send."""

    downloads: Counter[str]

    def do_HEAD(self) -> None:
        self._headers(len(WEIGHTS))

    def do_GET(self) -> None:
        if self.path.startswith("/api/"):
            file = {"type": "file", "path": NAME, "rfilename": NAME, "size": len(WEIGHTS), "oid": "1" * 40}
            of_model = {"sha": COMMIT, "id": "owner/model", "siblings": [file]}
            body = json.dumps([file] if "/tree/" in self.path else of_model).encode()
        else:
            type(self).downloads[self.path] += 1
            time.sleep(1)
            body = WEIGHTS
        self._headers(len(body))
        self.wfile.write(body)

    def _headers(self, size: int) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.send_header("ETag", f'"{hashlib.sha256(WEIGHTS).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None: ...


@pytest.fixture
def hub() -> Iterator[str]:
    Hub.downloads = Counter()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.mark.waits
def test_one_process_downloads_and_all_have_the_file(hub: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment |= {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    started = [
        subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    folders = {process.communicate(timeout=scaled(60))[0].strip() for process in started}
    assert [process.returncode for process in started] == [0] * PROCESSES
    assert len(folders) == 1
    assert (Path(folders.pop()) / NAME).read_bytes() == WEIGHTS
    assert list(Hub.downloads.values()) == [1]
    offline = environment | {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    found = subprocess.run([sys.executable, "-c", PROGRAM], env=offline, capture_output=True, timeout=scaled(60))
    assert found.returncode == 0, "what is in HF_HOME needs no network"
