"""The whole public directory through the library, and the runner itself."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.goldens.declined import declined
from tests.goldens.records import Answer, Record, records
from tests.goldens.verdicts import Verdict, distance, judge, judge_record, result
from tests.pace import scaled

ROOT = Path(__file__).parents[2]
PUBLIC = ROOT.parent / "shared" / "goldens" / "public"

METHODS = (
    ("GAE", "gae", ("*_contig.*", "*_gaps.*")),
    ("GAE with a bootstrap", "gae_bootstrap", ("*",)),
    ("GRPO", "advantages", ("*.grpo_std", "*.grpo_loo0_norm1", "*.grpo_group", "*.group_norm")),
    ("Dr.GRPO", "advantages", ("*.grpo_nostd", "*.grpo_loo0_norm0", "*.grpo_none", "*.dr_grpo")),
    ("RLOO", "advantages", ("*.rloo", "*.rloo_vec", "*.rloo_norm0", "*.grpo_loo1_norm0")),
    ("REINFORCE++", "advantages", ("*.reinforce_pp_g?",)),
    ("REINFORCE++-baseline", "advantages", ("*.reinforce_pp_baseline", "*.reinforce_pp_base1")),
    ("ReMax", "advantages", ("*.remax",)),
    ("V-trace", "vtrace", ("*",)),
    ("DAPO's overlong shaping", "overlong_balance", ("*.shaped",)),
    ("PPO", "policy_loss", ("*.ppo_sym*",)),
    ("separate bounds", "policy_loss", ("*.ppo_higher.*",)),
    ("dual clip", "policy_loss", ("*.ppo_dual*",)),
    ("GSPO", "policy_loss", ("*.gspo*",)),
    ("CISPO", "policy_loss", ("*.cispo*",)),
    ("SAPO", "policy_loss", ("*.sapo", "*.sapo.*")),
    ("plain policy gradient", "policy_loss", ("*.gpg*",)),
    ("decoupled PPO", "off_policy", ("*.decoupled_token_*",)),
    ("truncated importance", "off_policy", ("*.tis_token*", "*.tis_sequence*", "*.token_truncate*")),
    ("masked importance", "off_policy", ("*.token_mask*", "*.sequence_mask*", "*.rs_token_k1*")),
    ("IcePop", "off_policy", ("*.icepop*",)),
    ("k1", "kl", ("*.k1", "*.k1_noclamp")),
    ("k2", "kl", ("*.k2", "*.k2_noclamp")),
    ("k3", "kl", ("*.k3", "*.k3_noclamp")),
    ("adaptive KL", "kl", ("*.adaptive*",)),
    ("clipped value loss", "value_entropy_logprob", ("*.clip?", "*.clip?.*")),
    ("entropy", "value_entropy_logprob", ("*.entropy_t?",)),
    ("log-probs", "value_entropy_logprob", ("*.logprob_t?",)),
    ("DPO", "preference", ("*.dpo.*", "*.sigmoid.*")),
    ("IPO", "preference", ("*.ipo*",)),
    ("KTO", "preference", ("*.kto.*",)),
    ("Bradley-Terry", "preference", ("*.bt*",)),
)
"""The methods that the library names: family, and globs of the records of each."""


@cache
def verdicts() -> list[Verdict]:
    assert PUBLIC.is_dir(), "the golden vectors are not there: shared/goldens/public must stand beside the checkout"
    return judge(PUBLIC)


def test_no_array_of_the_public_directory_differs_and_at_least_1500_agree() -> None:
    assert [verdict for verdict in verdicts() if verdict.outcome == "differ"] == []
    assert result(verdicts())["agree"] >= 1500


@pytest.mark.parametrize(("method", "family", "globs"), METHODS)
def test_every_method_agrees_with_at_least_one_source_on_every_case(
    method: str, family: str, globs: tuple[str, ...]
) -> None:
    outcomes: dict[str, set[str]] = {}
    for verdict in verdicts():
        record = verdict.array.rsplit(".", 1)[0]
        if verdict.family == family and any(fnmatchcase(record, glob) for glob in globs):
            outcomes.setdefault(record.split(".")[0], set()).add(verdict.outcome)
    assert outcomes, method
    assert {case for case, seen in outcomes.items() if "agree" not in seen} == set()


def test_every_declined_entry_has_a_reason_and_covers_something() -> None:
    public = list(records(PUBLIC))
    for entry in declined():
        assert entry.reason
        assert any(entry.covers(record, quantity) for record in public for quantity in record.outputs), entry


def test_what_is_wrong_or_unknown_is_said_to_differ() -> None:
    [group] = [r for r in records(PUBLIC) if r.family == "vtrace" and r.key == "one.ref.v0"]
    wrong = {name: array + 1e-3 for name, array in group.outputs.items()}
    changed = Record(group.family, group.case, group.peer, group.variant, group.params, group.inputs, wrong)
    unknown = Record("vtrace", "new", "ref", "v9", None, group.inputs, group.outputs)
    broken = Record("vtrace", "new", "ref", "v9", {}, group.inputs, group.outputs)
    for record in (changed, unknown, broken):
        assert {verdict.outcome for verdict in judge_record(record)} == {"differ"}


def test_masked_positions_are_not_compared_and_a_nan_never_agrees() -> None:
    theirs = np.array([[1.0, 2.0]])
    assert distance(Answer([[1.0, np.nan]], np.array([[1, 0]])), theirs) == ""
    assert distance(Answer([[1.0, np.nan]]), theirs)
    assert distance(Answer([1.0, 2.0]), theirs).startswith("shape")


def test_the_last_line_of_the_runner_is_the_result_and_it_fails_when_something_differs(tmp_path: Path) -> None:
    for name in ("manifest.json", "vtrace.npz"):
        (tmp_path / name).write_bytes((PUBLIC / name).read_bytes())
    good = _run(tmp_path)
    with np.load(tmp_path / "vtrace.npz") as archive:
        arrays = {key: array + 1 if key == "A.ref.v0.vs" else array for key, array in archive.items()}
    np.savez(tmp_path / "vtrace.npz", **arrays)
    bad = _run(tmp_path)
    assert (good.returncode, bad.returncode) == (0, 1)
    assert good.stdout.splitlines()[-1].startswith('RESULT {"agree": 120, "declined": 0, "differ": 0, "families": {')
    assert "differ   vtrace: A.ref.v0.vs: 1 apart" in bad.stdout


def _run(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.goldens", str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=scaled(60), check=False)
