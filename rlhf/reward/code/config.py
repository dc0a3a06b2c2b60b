"""Settings of the reward `code`: unit tests of the task, run on the reply's code in a sandbox."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf.config import Config


class CodeRewardConfig(Config):
    """Where the tests are, how they are scored, and where they run."""

    tests_column: str = "tests"
    """Column with the tests: asserts as text or as a list of texts, or input/output pairs: a list of `{input, output}`,
    or `{inputs: [...], outputs: [...]}`, also as JSON text."""
    entry_point_column: str | None = None
    """Column with the name of the function that tests of the form `def check(candidate)` are called with."""
    setup_column: str | None = None
    """Column with Python code that runs before the tests: helpers and imports that the tests need. Tested names always
    come from the reply's code, even where the set-up defines them too: HumanEval's `prompt` can be used."""
    code_prefix_column: str | None = None
    """Column with Python code that the reply's code continues, in its process: imports and helpers that replies use and
    do not repeat, such as HumanEval's `prompt`."""
    names: tuple[str, ...] = ()
    """Names that tests take from the reply's code besides the entry point, for example a class `ListNode`. In a row
    with an entry point, no other names come from the code; without one, every name that the tests do not bind does."""
    tests: Literal["values", "trusting"] = "values"
    """How asserts are run. `values`: in their own process, which receives only plain values from the reply's code, and
    those that pass once more beside it, as in one plain Python; `trusting`: beside it alone, for tests that need its
    objects. A policy can then replace what the tests use, and pass all of them. docs/sandbox.md lists the tests that
    need it."""
    score: Literal["share", "all"] = "share"
    """`share`: the share of tests that pass; `all`: 1 when every test passes, else 0."""
    timeout_seconds: float = Field(10, gt=0)
    """Timeout of all asserts of a reply together, in each of their two runs, or of each input/output pair."""
    pairs_timeout_seconds: float = Field(60, gt=0)
    """Timeout of all input/output pairs of a reply together, which run sequentially: pairs that remain after it
    fail."""
    memory_mb: int = Field(512, ge=64)
    """Memory limit of a run, in MiB."""
    url: str | None = None
    """Server that runs the code (`rlhf serve sandbox`, or a SandboxFusion); default: this machine."""
    token_env: str | None = None
    """Environment variable with the server's bearer token."""
    max_concurrent_requests: int = Field(64, ge=1)
    """Programs that the server is asked for at once; a reply has one at a time."""
    max_concurrent_runs: int = Field(2, ge=1)
    """Programs that this machine's sandbox runs at once."""
    python: str | None = None
    """The Python interpreter that runs the code on this machine, with its packages; default: a Python without
    packages."""
    allow_rlimits: bool = False
    """Allow running code on this machine without isolation, where no isolation works."""
