"""`rlhf check` says what a recipe comes to, in a second and without the heavy packages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlhf.apps.cli.check import describe_environment
from rlhf.env.config import EnvironmentConfig
from rlhf.recipe.preflight import is_hub_name
from tests.apps.cli.conftest import Command
from tests.model_folders import change
from tests.pace import scaled


def test_a_sound_recipe_is_described(rlhf: Command, recipe: Path, rows: Path):
    ended = rlhf("check", recipe, "trainer.groups_per_update=6", "trainer.group_size=4", "trainer.max_staleness=1")
    assert ended.returncode == 0, ended.stderr
    weighed = "tokens weighed by learner over engine, at most 2"
    for part in (
        "6 groups x 4 samples = 24 samples",
        "12 groups at once",
        str(rows),
        "engine         1",
        "tiny qwen2",
        weighed,
    ):
        assert part in ended.stdout


def test_unit_tests_that_trust_the_code_are_counted(rlhf: Command, recipe: Path, rows: Path):
    tests = ["assert f(1) == 2", "assert Stack([1]) == Stack([1])", "assert Stack([1]).pop() == 1"]
    tests.append("def check(f): assert f(1) == 2")
    rows.write_text("".join(json.dumps({"question": "?", "answer": "", "tests": [test]}) + "\n" for test in tests))
    ended = rlhf("check", recipe, "reward.kind=code")
    told = (
        "1 of 4 rows trust the code, the first because they use Stack([1]); 1 cannot be used, the first "
        f"({rows}, row 4) because nothing calls check: set reward.code.entry_point_column to the column with its "
        "argument"
    )
    assert f"unit tests     {told}\n" in ended.stdout
    refusing = rlhf("check", recipe, "reward.kind=code", "reward.code.trusting=refuse")
    assert "unit tests     1 of 4 rows are refused: they trust the code" in refusing.stdout


def test_solutions_that_fail_and_modules_that_are_missing_are_told_by_row(rlhf: Command, recipe: Path, rows: Path):
    """With a solution that passes, one that fails its asserts, one that prints something else, none; and a row that
    imports what no Python has."""
    inc, pair = "def f(x): return x + 1", {"input": "3\n", "output": "4\n"}
    made = [
        (["assert f(1) == 2"], inc),
        (["assert f(1) == 3"], inc),
        ([pair], "print(int(input()) + 1)"),
        ([pair], "print(int(input()) + 2)"),
        ([pair], None),
        (["import no_such_module\nassert f(1) == 2"], inc),
    ]
    lines = [{"question": "?", "answer": "", "tests": tests, "solution": solution} for tests, solution in made]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ended = rlhf("check", recipe, "reward.kind=code", "reward.code.solution_column=solution")
    said = [line.removeprefix("unit tests").strip() for line in ended.stdout.splitlines() if line.startswith("unit")]
    assert said[0].startswith(f"0 of 6 rows trust the code; 2 cannot be used, the first ({rows}, row 2) because")
    assert said[1].startswith(
        f"4 of 6 rows fail their own solution: {rows}, row 2: 0 of 1 tests pass (values); test 1:"
    )
    assert f"{rows}, row 4: 0 of 1 tests pass (stdin); test 1: the output is wrong" in said[1]
    assert f"{rows}, row 5: column 'solution' does not hold a solution" in said[1]
    assert said[2].startswith("the sandbox's Python lacks what rows import: no_such_module (1); ")


def test_what_exports_will_leave_out_is_said(rlhf: Command, recipe: Path, model_folder: Path):
    change(model_folder / "generation_config.json", eos_token_id=2, temperature=0.9, top_p=0.6)
    ended = rlhf("check", recipe, "model.tiny=null", f"model.path={model_folder}")
    left = "leave out temperature, top_p of generation_config.json, which transformers does not save again"
    assert f"exports        {left}\n" in ended.stdout


def test_the_size_of_pickled_weights_is_not_guessed(rlhf: Command, recipe: Path, model_folder: Path):
    (model_folder / "model.safetensors").rename(model_folder / "pytorch_model.bin")
    ended = rlhf("check", recipe, "model.tiny=null", f"model.path={model_folder}")
    assert "parameters     unknown without safetensors files" in ended.stdout


def test_checking_imports_neither_torch_nor_ray_nor_vllm(recipe: Path, model_folder: Path):
    program = (
        "import sys; from pathlib import Path; from rlhf.apps.cli.check import run_check\n"
        "run_check(Path(sys.argv[1]), [])\n"
        "run_check(Path(sys.argv[1]), ['model.tiny=null', f'model.path={sys.argv[2]}'])\n"
        "sys.exit(', '.join({'torch', 'ray', 'vllm', 'deepspeed', 'transformers', 'datasets'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(recipe), str(model_folder)],
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )
    assert ended.stderr.strip() == ""


def test_a_cluster_to_join_is_asked_for_its_places_only_when_it_is_joined(rlhf: Command, recipe: Path):
    ended = rlhf("check", recipe, "cluster.address=10.0.0.1:6379", "rollout.cpus_per_engine=4000")
    assert ended.returncode == 0, ended.stderr
    assert "10.0.0.1:6379" in ended.stdout


def test_an_environment_is_described(rlhf: Command):
    ended = rlhf("check", Path(__file__).parents[3] / "recipes" / "tool_calculator.yaml", "environment.max_turns=3")
    assert ended.returncode == 0, ended.stderr
    assert "rlhf.env.tools:CalculatorEnvironment, at most 3 turns, of which the policy sees all of it" in ended.stdout
    assert "it runs        next to the controller, in threads" in ended.stdout
    assert "8,192 seeds of the environment" in ended.stdout


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ("{environment: a.b:C}", "next to the controller, in threads"),
        ("{environment: a.b:C, isolation: process}", "next to the controller, each session in a process"),
        ("{environment: a.b:C, servers: 3}", "on 3 servers of this run, in threads"),
        ("{urls: [http://127.0.0.1:1]}", "on servers that run already"),
        (
            "{environment: a.b:C, recording: {path: played.jsonl, mode: record}}",
            "next to the controller, in threads, recorded in played.jsonl",
        ),
        ("{environment: a.b:C, recording: {path: played.jsonl}}", "replayed from played.jsonl"),
    ],
)
def test_where_an_environment_runs_is_told(environment: str, told: str):
    config = EnvironmentConfig(**yaml.safe_load(environment))
    assert describe_environment(config)[1] == ("it runs", told)


def test_an_agent_is_described(rlhf: Command, recipe: Path, tmp_path: Path):
    (tmp_path / "my_agent.py").write_text("def play(task, base_url, api_key): ...")
    ended = rlhf("check", recipe, "agent={program: my_agent:play, max_agents: 32, timeout_seconds: 90}")
    assert ended.returncode == 0, ended.stderr
    assert "agent          my_agent:play, at most 32 episodes at once, each of 90 s" in ended.stdout
    assert "the template   the chat template does not show the policy the tools in a request" in ended.stdout


def test_what_this_machine_lacks_is_told_last_and_a_hub_that_cannot_be_reached(rlhf: Command, recipe: Path):
    """The tests have HF_HUB_OFFLINE=1."""
    asked = rlhf("check", recipe, "trainer.deepspeed.gpus_per_rank=1", "trainer.deepspeed.ranks=99")
    assert "learner       99" in asked.stdout
    assert (asked.returncode, "99 GPUs asked, this machine has" in asked.stderr) == (2, True)
    asked = rlhf("check", recipe, "model={path: nobody/none}")
    assert asked.returncode == 2
    assert "model.path=nobody/none is neither a folder nor in the hub's cache" in asked.stderr
    assert "cannot be reached; give a folder, or run `hf download nobody/none`" in asked.stderr


def test_a_warmup_whose_replies_the_run_would_cut_is_told(rlhf: Command):
    ended = rlhf("check", Path(__file__).parents[3] / "recipes" / "quickstart.yaml", "sampling.max_tokens=5")
    assert (
        "warm-up        12,800 of its 12,800 replies have up to 6 tokens, of which sampling.max_tokens leaves 5"
        in ended.stdout
    )


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-0.5B-Instruct", "gpt2"])
def test_names_of_the_hub_are_left_to_the_hub(name: str):
    assert is_hub_name(name)


@pytest.mark.parametrize("name", ["./model", "/model", "~/model", "a/b/c"])
def test_paths_are_not_names_of_the_hub(name: str):
    assert not is_hub_name(name)


def test_a_name_whose_first_part_is_a_folder_here_was_meant_as_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert not is_hub_name("runs/quickstart")


OWN = """\
import no_such_library


def score(response, row): ...
"""
SOUND = """\
from rlhf import Callback


def score(response, row, each=1): return 1.0
def loss(actions): ...
def estimate(episodes): ...
def play(task, base_url, api_key): ...
def open_model(): raise AssertionError("called")
class Diary(Callback): ...
class Half:
    def __init__(self, top=9): ...
    def step(self, action): ...
    def close(self): ...
class World(Half):
    def reset(self, task, *, seed): ...
class Seedless(Half):
    def reset(self, task): ...
"""
NAMED = (
    ("reward={kind: function, function: PIECE}", "score", "reward.function"),
    ("trainer.loss.policy=PIECE", "loss", "trainer.loss.policy"),
    ("trainer.advantage.estimator=PIECE", "estimate", "trainer.advantage.estimator"),
    ("callbacks=[PIECE]", "Diary", "callbacks.0"),
    ("agent={program: PIECE}", "play", "agent.program"),
    ("environment={environment: PIECE}", "World", "environment.environment"),
    ("model.loader=PIECE", "open_model", "model.loader"),
)


@pytest.mark.parametrize(("override", "name", "setting"), NAMED, ids=[setting for _, _, setting in NAMED])
def test_everything_that_a_recipe_names_is_imported(
    override: str, name: str, setting: str, rlhf: Command, recipe: Path, tmp_path: Path
):
    (tmp_path / "broken.py").write_text(OWN)
    (tmp_path / "sound.py").write_text(SOUND)
    for piece, told in (
        (f"broken:{name}", "ModuleNotFoundError: No module named 'no_such_library' (at broken.py:1)"),
        ("sound:absent", "AttributeError: module 'sound' has no attribute 'absent'"),
    ):
        ended = rlhf("check", recipe, override.replace("PIECE", piece))
        assert ended.returncode == 2
        assert setting in ended.stderr
        assert ended.stderr.rstrip().endswith(told)
    ended = rlhf("check", recipe, override.replace("PIECE", f"sound:{name}"))
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("reward={kind: function, function: sound:score, arguments: {all: 1}}", "unexpected keyword argument 'all'"),
        ("environment={environment: sound:World, eval_arguments: {all: 1}}", "it takes top"),
        ("agent={program: sound:play, arguments: {all: 1}}", "it takes task, base_url, api_key"),
        ("callbacks=[{call: sound:Diary, arguments: {all: 1}}]", "callbacks.0 is sound:Diary"),
        ("environment={environment: sound:Half}", "sound:Half, which has no method reset; it needs reset, step"),
        (
            "environment={environment: sound:Seedless}",
            "is sound:Seedless.reset, which cannot be called with 1 value and",
        ),
    ],
)
def test_arguments_that_are_not_accepted_are_told(
    override: str, told: str, rlhf: Command, recipe: Path, tmp_path: Path
):
    (tmp_path / "sound.py").write_text(SOUND)
    ended = rlhf("check", recipe, override)
    assert ended.returncode == 2
    assert told in ended.stderr


def test_preset_rates_critic_and_a_warm_up_that_never_ends_are_told(rlhf: Command, recipe: Path):
    ended = rlhf(
        "check", recipe, "trainer.algorithm=ppo", "trainer.loss.clip_high=0.3", "trainer.updates=10",
        "trainer.critic.warmup_updates=2", "trainer.optimizer={learning_rate: 2e-6, warmup_steps: 64}",
        "trainer.critic.optimizer={schedule: cosine, warmup_steps: 8}", "trainer.kl={coefficient: 0.02, target: 0.1}",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    (preset,) = [line for line in ended.stdout.splitlines() if line.startswith("preset ")]
    assert "ppo (arXiv 1707.06347): " in preset
    assert all(text in preset for text in ("advantage.estimator gae", "advantage.whiten true", "minibatches 4"))
    assert "clip_high" not in preset, "the recipe sets it"
    for line in (
        "learning rate  2e-06, constant, warm-up of 64 steps: longer than the run, which has 64, so the rate never"
        " reaches 2e-06",
        "critic         the start model with a head of zeros, trained alone for the first 2 updates",
        "loss           ppo, clip_low 0.2, clip_high 0.3",
        "KL penalty     coefficient 0.02 in the reward, adapted towards 0.1 nats per token",
        "sampling       at temperature 1",
        "its rate       1e-05, cosine, warm-up of 8 steps",
    ):
        assert f"{line}\n" in ended.stdout


def test_the_pairs_and_beta_of_a_preference_run_are_told(rlhf: Command, recipe: Path, rows: Path):
    pair = {"prompt": "1 + 1?", "chosen": "2", "rejected": "3"}
    rows.write_text("".join(json.dumps(pair | {"prompt": f"{n} + 1?"}) + "\n" for n in range(7)))
    ended = rlhf(
        "check", recipe, "kind=preference", "trainer.preference.beta=0.3", "data.train.prompt_column=prompt",
        "data.train.chosen_column=chosen", "data.train.rejected_column=rejected", "trainer.updates=3",
        "trainer.groups_per_update=4",
        f"data.eval={{path: {rows}, prompt_column: prompt, chosen_column: chosen, rejected_column: rejected}}",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    for line in (
        "loss on pairs  dpo, beta 0.3",
        f"held out       {rows}",
        "rows           7 pairs in data.train",
        "the run        3 updates of 4 examples each, 12 in all",
        "checkpoints    at the end, and as often as costs 2 % of the time, "
        "at the latest 30 minutes after the last one, the newest 2 are kept",
    ):
        assert f"{line}\n" in ended.stdout


def test_the_gpus_that_a_run_uses_are_told(rlhf: Command, recipe: Path):
    gpus = ("trainer.deepspeed.gpus_per_rank=1", "rollout.gpus_per_engine=1", "trainer.deepspeed.ranks=2")
    ended = rlhf("check", recipe, *gpus, "cluster.address=10.0.0.1:6379")
    assert "GPUs           uses 3 of the cluster's\n" in ended.stdout
