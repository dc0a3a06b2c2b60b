"""scripts/setup.sh against indexes on this machine: what it takes from where, what it keeps, and what it says."""

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
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

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


pytestmark = pytest.mark.engine  # no engine, but the real pip: more than a minute in all

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return virtual_environment(tmp_path_factory.mktemp("template") / "venv")


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """As most are: of torch, the CUDA build alone."""
    with Index(tmp_path / "index", torch=["9.9"], plain=["1.0", "2.0"]) as serving:
        yield serving


@pytest.fixture
def pytorch(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "pytorch", torch=["9.9+cpu"]) as serving:
        yield serving


@pytest.fixture
def checkout(tmp_path: Path, template: Path, index: Index, pytorch: Index) -> Checkout:
    return Checkout(tmp_path / "a folder with spaces", template, index.url, pytorch.url)


def eventually(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + scaled(20)
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


@pytest.mark.parametrize("with_uv", [False, True])
def test_an_index_without_torchs_cpu_build_is_helped_by_pytorchs(
    checkout: Checkout, index: Index, pytorch: Index, with_uv: bool
) -> None:
    checkout.pin_torch()
    if with_uv:
        checkout.program("uv", UV)
    done = checkout.setup()
    assert done.returncode == 0, done.stderr
    assert f"taking it from {pytorch.url}" in done.stdout
    assert (", by uv " in done.stdout) == with_uv
    assert (checkout.installed("torch"), checkout.installed("plain")) == ("9.9+cpu", "1.0")
    assert index.downloads == ["plain-1.0-py3-none-any.whl"], "the CUDA build was left where it is"
    if with_uv:
        told = Path(checkout.environment["HOME"], "uv.log").read_text()
        assert index.url in told
        assert f"--index-url {pytorch.url} torch==9.9+cpu" in told


@pytest.mark.slow
def test_an_index_that_has_it_is_enough(checkout: Checkout, pytorch: Index, tmp_path: Path) -> None:
    checkout.pin_torch()
    with Index(tmp_path / "full", torch=["9.9", "9.9+cpu"], plain=["1.0"]) as full:
        done = checkout.setup(PIP_INDEX_URL=full.url)
    assert done.returncode == 0, done.stderr
    assert checkout.installed("torch") == "9.9+cpu"
    assert pytorch.downloads == []


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"TORCH_INDEX_URL": NOWHERE}, ("torch==9.9+cpu", "TORCH_INDEX_URL")),
        ({"PIP_INDEX_URL": NOWHERE}, ("cannot be reached",)),
        ({"http_proxy": NOWHERE, "https_proxy": NOWHERE}, ("correct HTTPS_PROXY",)),
    ],
)
@pytest.mark.slow
def test_the_last_line_says_which_index_or_proxy_does_not_work(
    checkout: Checkout, variables: dict[str, str], words: tuple[str, ...]
) -> None:
    checkout.pin_torch()
    done = checkout.setup(**variables)
    assert done.returncode == 2
    assert all(word in last_line(done.stderr) for word in words)
    assert not checkout.ready()


@pytest.mark.slow
def test_a_finished_set_up_returns_at_once_and_follows_pins_lists_pythons_and_moves(checkout: Checkout) -> None:
    checkout.program("uv", UV)
    assert ", by pip " in checkout.setup(UV="0").stdout
    again = checkout.setup(PIP_INDEX_URL=NOWHERE, TORCH_INDEX_URL=NOWHERE)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert not Path(checkout.environment["HOME"], "uv.log").exists()
    (checkout.bin / "uv").unlink()

    kept, made_for = checkout.folder / ".venv" / "kept", checkout.folder / ".venv" / ".made-for"
    kept.touch()
    checkout.pin("cpu", "plain==2.0\n")
    assert checkout.setup().returncode == 0
    assert (checkout.installed("plain"), kept.exists()) == ("2.0", True)

    was = made_for.read_text()
    made_for.write_text(f"requirements/cpu.txt\n3.10\n{checkout.folder}\n")
    assert checkout.setup().stdout == "", "no Python was named"
    assert checkout.setup(PYTHON="python3").returncode == 0
    assert made_for.read_text() == was

    checkout.pin("other", "plain==1.0\n")
    assert checkout.setup(REQUIREMENTS="requirements/other.txt").returncode == 0
    assert checkout.installed("plain") == "1.0"
    assert "no list" in checkout.setup(REQUIREMENTS="requirements/none.txt").stderr

    checkout.folder = checkout.folder.rename(checkout.folder.parent / "moved")
    assert checkout.setup().returncode == 0
    assert str(checkout.folder) in (checkout.folder / ".venv" / ".made-for").read_text()


def test_a_package_that_is_missing_leaves_nothing_that_looks_ready(checkout: Checkout) -> None:
    checkout.pin("cpu", "absent==1.0\n")
    done = checkout.setup()
    assert (done.returncode, "absent==1.0" in done.stderr, checkout.ready()) == (2, True, False)


def test_one_that_was_killed_while_it_installed_is_made_anew(checkout: Checkout, index: Index) -> None:
    checkout.pin_torch()
    index.hold = True
    with checkout.begun():
        eventually(lambda: index.downloads)
    assert checkout.installed("torch") == "9.9+cpu"
    index.hold = False
    (checkout.folder / ".venv" / "half").touch()
    done = checkout.setup()
    assert done.returncode == 0, done.stderr
    assert checkout.installed("plain") == "1.0"
    assert not (checkout.folder / ".venv" / "half").exists()


@pytest.mark.slow
def test_two_at_a_time_wait_for_one_another(checkout: Checkout, index: Index) -> None:
    index.hold = True
    with checkout.begun() as first:
        eventually(lambda: index.downloads)
        with checkout.begun() as second:
            time.sleep(0.5)
            assert len(index.downloads) == 1, "the second waits"
            index.hold = False
            assert (first.wait(scaled(30)), second.wait(scaled(30))) == (0, 0)
            first_downloads = index.downloads.count("plain-1.0-py3-none-any.whl")
    assert first_downloads == 1, "and finds it ready"


@pytest.mark.slow
def test_a_gpu_takes_the_gpu_list_and_the_choice_is_kept(checkout: Checkout) -> None:
    checkout.pin_torch()
    checkout.program("nvidia-smi", "echo 'GPU 0: one'")
    assert checkout.setup().returncode == 0
    assert checkout.installed("torch") == "9.9"
    assert checkout.setup(GPU="0").returncode == 0
    assert checkout.installed("torch") == "9.9+cpu", "made anew, for 9.9+cpu also satisfies a pin on 9.9"
    assert checkout.setup().stdout == "", "as it was chosen"
    checkout.program("nvidia-smi", "exit 9")
    assert checkout.setup(GPU="1").returncode == 0
    assert checkout.installed("torch") == "9.9"
    assert "1 or 0" in last_line(checkout.setup(GPU="yes").stderr)


def test_a_gpu_without_the_headers_of_python_is_said_before_anything_is_installed(checkout: Checkout) -> None:
    checkout.pin_torch()
    real = (checkout.bin / "python3").read_text().removeprefix("#!/bin/sh\n")
    checkout.program("python3", f'case "$2" in *include*) echo /nowhere; exit ;; esac\n{real}')
    done = checkout.setup(GPU="1")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "/nowhere/Python.h: apt-get install build-essential python3." in done.stderr
    assert not (checkout.folder / ".venv").exists()


def test_another_python_is_said_in_a_line(checkout: Checkout) -> None:
    checkout.program("python3", '[ "$1" = -c ] && case "$2" in *good*) exit 1 ;; *) echo 3.9 ;; esac')
    done = checkout.setup()
    assert done.returncode == 2
    assert "Python 3.11, 3.12 or 3.13 is needed, python3 is 3.9" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    named = checkout.setup(PYTHON=str(checkout.bin / "python3"))
    assert (named.returncode, len(named.stderr.splitlines())) == (2, 1)
    assert "is Python 3.9, not" in named.stderr


@pytest.mark.parametrize(
    ("program", "script", "words"),
    [
        ("uname", "case $1 in -s) echo Darwin ;; *) echo arm64 ;; esac", "this is Darwin arm64"),
        ("uname", "case $1 in -s) echo Linux ;; *) echo riscv64 ;; esac", "this is Linux riscv64"),
        ("getconf", "exit 1", "another libc"),
        ("getconf", "echo glibc 2.17", "glibc 2.17"),
    ],
)
def test_another_platform_gets_a_line_with_the_container(
    checkout: Checkout, program: str, script: str, words: str
) -> None:
    checkout.program(program, script)
    done = checkout.setup()
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert words in done.stderr
    assert "docker build --file Dockerfile.cpu" in done.stderr


def test_aarch64_and_the_oldest_libc_with_wheels_go_on(checkout: Checkout) -> None:
    checkout.program("uname", "case $1 in -s) echo Linux ;; *) echo aarch64 ;; esac")
    checkout.program("getconf", "echo glibc 2.31")
    assert "cannot be reached" in checkout.setup(PIP_INDEX_URL=NOWHERE).stderr


def test_without_a_venv_module_the_last_line_names_the_package(checkout: Checkout) -> None:
    real = (checkout.bin / "python3").read_text()
    checkout.program("python3", real.replace("exec cp", "{ echo no ensurepip; exit 1; } #"))
    done = checkout.setup()
    assert done.returncode == 2
    assert "-venv)" in last_line(done.stderr)
    assert not (checkout.folder / ".venv").exists()


@pytest.mark.parametrize("user", ["1000", "0"])
def test_without_bubblewrap_the_set_up_goes_on_and_says_so(checkout: Checkout, user: str) -> None:
    """A user who is not root cannot install it, and this root's Debian has none."""
    (checkout.bin / "bwrap").unlink()
    checkout.environment["PATH"] = f"{checkout.bin}:{without_bubblewrap(checkout.folder.parent / 'system')}"
    checkout.program("id", f"echo {user}")
    checkout.program("apt-get", "exit 100")
    done = checkout.setup()
    assert done.returncode == 0, done.stderr
    assert "bubblewrap is missing" in done.stdout
    assert checkout.ready()


def without_bubblewrap(folder: Path) -> Path:
    """The system's programs, less bubblewrap, which may be installed."""
    folder.mkdir()
    for program in (each for place in ("/bin", "/usr/bin") for each in Path(place).iterdir()):
        link = folder / program.name
        if program.name != "bwrap" and not link.is_symlink():
            link.symlink_to(program)
    return folder
