"""A checkout of two packages with the real scripts/setup.sh, and the package indexes that it asks, on this machine."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.pace import scaled

SETUP = Path(__file__).parents[2] / "scripts" / "setup.sh"
PYPROJECT = """[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "stub"
version = "1"
"""
# What setuptools would need a wheel of itself for.
BACKEND = """import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "stub-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as file:
        file.writestr("stub-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: stub\\nVersion: 1\\n")
        file.writestr("stub-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        file.writestr("stub-1.dist-info/RECORD", "")
    return name
"""
# A uv that keeps to what the script may ask of it, and says what it was told.
UV = """#!/bin/sh
echo "$@ | $UV_DEFAULT_INDEX" >>"$HOME/uv.log"
[ "$1 $2" = "pip install" ] || exit 1
shift 4; python=$1; shift
case "$*" in *--index-url*) ;; *) export PIP_INDEX_URL="$UV_DEFAULT_INDEX" ;; esac
exec "$python" -m pip install --disable-pip-version-check -q "$@"
"""


def write_wheel(folder: Path, name: str, version: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", f"version = '{version}'\n")
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")


class Index:
    """A folder of wheels as a package index. `hold` keeps every download waiting until it is cleared."""

    def __init__(self, folder: Path, **wheels: list[str]) -> None:
        for name, versions in wheels.items():
            for version in versions:
                write_wheel(folder / name, name, version)
        self.downloads: list[str] = []
        self.hold = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(self._handler(), directory=str(folder)))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _handler(index) -> type[SimpleHTTPRequestHandler]:
        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.endswith(".whl"):
                    index.downloads.append(urllib.parse.unquote(self.path).rpartition("/")[2])
                    while index.hold:
                        time.sleep(0.05)
                with contextlib.suppress(ConnectionError):
                    super().do_GET()

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    def __enter__(self) -> Index:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hold = False
        self._server.shutdown()
        self._server.server_close()


def virtual_environment(folder: Path) -> Path:
    """Made once and copied, for making one takes seconds."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=scaled(120))
    return folder


class Checkout:
    """The folder, what is on its PATH, and its environment: nothing of this machine's settings."""

    def __init__(self, folder: Path, template: Path, index: str, torch_index: str) -> None:
        self.folder, self.bin, home = folder, folder.parent / "bin", folder.parent / "home"
        for each in (folder / "scripts", folder / "requirements", self.bin, home):
            each.mkdir(parents=True)
        shutil.copy(SETUP, folder / "scripts")
        (folder / "pyproject.toml").write_text(PYPROJECT)
        (folder / "backend.py").write_text(BACKEND)
        self.pin("cpu", "plain==1.0\n")
        # Real pythons lie in /usr/bin too: the names that the script tries are all covered.
        self.program(
            "python3", f'[ "$1 $2" != "-m venv" ] || exec cp -a "{template}" "$3"\nexec "{sys.executable}" "$@"'
        )
        for version in ("3.11", "3.12", "3.13"):
            self.program(f"python{version}", "exit 1")
        self.program("bwrap", "exit 0")
        self.program("nvidia-smi", "exit 9")
        self.program("gcc", "exit 0")
        self.environment = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(home),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": index,
            "PIP_NO_CACHE_DIR": "1",
            "PIP_RETRIES": "1",
            "PIP_TIMEOUT": "20",
            "TORCH_INDEX_URL": torch_index,
        }

    def pin(self, name: str, text: str) -> None:
        (self.folder / "requirements" / f"{name}.txt").write_text(text)

    def pin_torch(self) -> None:
        """For tests of where it comes from; it takes an installer two more runs."""
        self.pin("cpu", "torch==9.9+cpu\nplain==1.0\n")
        self.pin("gpu", "torch==9.9\nplain==1.0\n")

    def program(self, name: str, script: str) -> None:
        file = self.bin / name
        file.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def setup(self, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = self.environment | variables
        return subprocess.run(
            [self.folder / "scripts" / "setup.sh"], env=environment, capture_output=True, text=True, timeout=60
        )

    @contextlib.contextmanager
    def begun(self) -> Iterator[subprocess.Popen[bytes]]:
        """A set-up at work, killed with all that it started at the end of the block."""
        process = subprocess.Popen(
            [self.folder / "scripts" / "setup.sh"],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(scaled(10))

    def installed(self, package: str) -> str:
        """Its version in .venv, or nothing."""
        script = f"import {package}; print({package}.version)"
        answer = subprocess.run([self.folder / ".venv/bin/python", "-c", script], capture_output=True, text=True)
        return answer.stdout.strip()

    def ready(self) -> bool:
        return (self.folder / ".venv" / ".ready").exists()
