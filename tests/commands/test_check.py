"""`rlhf check` says what a recipe comes to, in a second and without the heavy packages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlhf.commands.check import describe_environment
from rlhf.env.config import EnvironmentConfig
from rlhf.models.supported_families import measurements
from rlhf.recipe.preflight import is_hub_name
from tests.commands.conftest import Command
from tests.model_folders import CONFIG, PARAMETERS
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
        "because nothing "
        "calls check: reward.code.entry_point_column names what it is called with"
    )
    assert f"unit tests     {told}\n" in ended.stdout
    refusing = rlhf("check", recipe, "reward.kind=code", "reward.code.trusting=refuse")
    assert "unit tests     1 of 4 rows are refused: they trust the code" in refusing.stdout


def test_a_model_folder_is_described(rlhf: Command, recipe: Path, model_folder: Path):
    ended = rlhf("check", recipe, "model.tiny=null", f"model.path={model_folder}")
    assert ended.returncode == 0, ended.stderr
    assert f"family         qwen2 (Qwen2ForCausalLM): {measurements().verdict_text(CONFIG)}\n" in ended.stdout
    assert f"parameters     {PARAMETERS}\n" in ended.stdout


def test_the_size_of_pickled_weights_is_not_guessed(rlhf: Command, recipe: Path, model_folder: Path):
    (model_folder / "model.safetensors").rename(model_folder / "pytorch_model.bin")
    ended = rlhf("check", recipe, "model.tiny=null", f"model.path={model_folder}")
    assert "parameters     unknown without safetensors files" in ended.stdout


def test_checking_imports_neither_torch_nor_ray_nor_vllm(recipe: Path, model_folder: Path):
    program = (
        "import sys; from pathlib import Path; from rlhf.commands.check import run_check\n"
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
    ended = rlhf("check", Path(__file__).parents[2] / "recipes" / "tool_calculator.yaml", "environment.max_turns=3")
    assert ended.returncode == 0, ended.stderr
    assert "rlhf.env.tools:CalculatorEnvironment, at most 3 turns, of which the policy sees all of it" in ended.stdout
    assert "it runs        beside the controller, in threads" in ended.stdout
    assert "8,192 seeds of the environment" in ended.stdout


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ("{environment: a.b:C}", "beside the controller, in threads"),
        ("{environment: a.b:C, isolation: process}", "beside the controller, each session in a process"),
        ("{environment: a.b:C, servers: 3}", "on 3 servers of this run, in threads"),
        ("{urls: [http://127.0.0.1:1]}", "on servers that run already"),
        (
            "{environment: a.b:C, recording: {path: played.jsonl, mode: record}}",
            "beside the controller, in threads, recorded in played.jsonl",
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
