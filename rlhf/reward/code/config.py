"""Settings of the reward `code`: unit tests of the task, run on the reply's code in a sandbox."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf.config import Config


class CodeRewardConfig(Config):
    """Where the tests are, how they are scored, and where they run."""

    tests_column: str = "tests"
    """Column with the tests: Python, pairs of input and output, or calls with their results; also as JSON text. Dots
    lead into a mapping: `verification_info.test_cases`."""
    entry_point_column: str | None = None
    """Column with the name of the function that is tested: `two_sum`, `Solution().twoSum`."""
    setup_column: str | None = None
    """Column with Python code that runs before the tests: helpers and imports that the tests need."""
    code_prefix_column: str | None = None
    """Column with Python code that the reply's code continues, in its process: imports and helpers that replies use and
    do not repeat, such as HumanEval's `prompt`."""
    solution_column: str | None = None
    """Column with the data set's own solution. It decides where the tests of a row run: apart from the code if it
    passes there, else in the code's process; if it passes nowhere, the row has no score (`rlhf check` lists such rows).
    Default: the text of the tests decides."""
    names: tuple[str, ...] = ()
    """Names that tests take from the reply's code in addition to the entry point, for example a class `ListNode`.
    Without an entry point, every name that the tests use but do not bind comes from the code."""
    trusting: Literal["allow", "refuse"] = "allow"
    """Tests that need the objects of the code run in its process, where a policy can replace what they use and pass
    them all. `allow`: such rows are scored, and their records say `trusting`; `refuse`: they have no score."""
    score: Literal["share", "all"] = "share"
    """`share`: the share of tests that pass; `all`: 1 when every test passes, else 0."""
    timeout_seconds: float = Field(10, gt=0)
    """Timeout of all Python tests of a reply together, or of each input/output pair."""
    pairs_timeout_seconds: float = Field(60, gt=0)
    """Timeout of all input/output pairs of a reply together; they run in turn, and those after the timeout fail."""
    memory_mb: int = Field(512, ge=64)
    """Memory limit of a run, in MiB."""
    url: str | None = None
    """Server that runs the code (`rlhf serve sandbox`, or a SandboxFusion); default: this machine."""
    token_env: str | None = None
    """Environment variable with the server's bearer token."""
    max_concurrent_requests: int = Field(64, ge=1)
    """Maximum number of programs that the server runs at once; each reply has one at a time."""
    max_concurrent_runs: int = Field(2, ge=1)
    """Maximum number of programs that this machine's sandbox runs at once."""
    python: str | None = None
    """Python interpreter that runs the code on this machine; default: one without packages."""
    allow_rlimits: bool = False
    """Allow running code on this machine without isolation, where no isolation works."""
