"""Configurations of TRL, verl and OpenRLHF become recipes, and no setting of theirs is dropped silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rlhf.apps.cli.main import app
from rlhf.apps.translation.reading import Unread, read_settings, read_table
from rlhf.apps.translation.translating import Translation, translated
from rlhf.config import flatten, known_keys
from rlhf.errors import ConfigError, UserError
from rlhf.recipe.loading import load_recipe, other_names
from rlhf.recipe.schema import Recipe

CONFIGURATIONS = Path(__file__).parent / "configurations"
SYSTEMS = ("trl", "verl", "openrlhf")
TAKEN: dict[str, dict[str, Any]] = {
    "trl_gsm8k.py": {
        "trainer.algorithm": "dr_grpo", "trainer.loss.clip_high": 0.28, "trainer.kl.coefficient": 0.02,
        "trainer.groups_per_update": 2, "trainer.minibatches": 1, "trainer.epochs": 2, "trainer.updates": 150,
        "trainer.optimizer.warmup_steps": 30, "trainer.save_every": 25, "sampling.max_tokens": 768,
        "model.lora.target_modules": ["q_proj", "v_proj"], "cluster.placement": "colocated", "model.dtype": "bfloat16",
        "data.train.path": "openai/gsm8k", "data.train.answer_column": "answer",
        "reward.function": "trl_gsm8k_functions:says_number",
    },
    "trl_sorting.py": {
        "data.train.tasks": "trl_sorting_functions:train_tasks", "trainer.group_size": 4,
        "reward.parts.accuracy_reward.function": "trl_sorting_functions:accuracy_reward",
        "reward.parts.accuracy_reward.weight": 1.0, "trainer.optimizer.learning_rate": 1e-3,
    },
    "trl_gspo.yaml": {
        "trainer.loss.policy": "gspo", "trainer.loss.clip_low": 3e-4, "trainer.loss.aggregation": "sequence_mean",
        "trainer.groups_per_update": 32, "trainer.group_size": 16, "trainer.minibatches": 4,
        "trainer.correction.high": 3.0, "trainer.optimizer.schedule": "constant", "trainer.eval_every": 0,
        "trainer.save_every": 16, "trainer.deepspeed.ranks": 8, "data.train.path": "my-team/olympiad",
    },
    "trl_cispo.json": {
        "trainer.algorithm": "cispo", "trainer.loss.clip_high": 4.0, "trainer.advantage.whiten": True,
        "trainer.groups_per_update": 64, "trainer.minibatches": 4, "trainer.updates": 32, "trainer.eval_every": 8,
        "trainer.tokens_per_microbatch": 8 * (512 + 1024),
        "rollout.engines": 2, "rollout.tensor_parallel_size": 2, "trainer.optimizer.schedule": "linear",
    },
    "verl_gsm8k.sh": {
        "trainer.algorithm": "grpo", "trainer.loss.aggregation": "token_mean", "trainer.loss.dual_clip": 3.0,
        "trainer.groups_per_update": 512, "trainer.group_size": 6, "trainer.minibatches": 4, "rollout.engines": 4,
        "trainer.kl.coefficient": 0.002, "trainer.kl.estimator": "k3", "trainer.kl.place": "loss",
        "data.train.path": "data/gsm8k/train.parquet", "data.eval.answer_column": "reward_model.ground_truth",
        "trainer.tokens_per_microbatch": 8 * 2304, "run.loggers": ["tensorboard", "wandb"],
    },
    "verl_ppo.yaml": {
        "trainer.algorithm": "ppo", "trainer.kl.place": "reward", "trainer.kl.target": 0.08, "trainer.epochs": 2,
        "trainer.critic.optimizer.learning_rate": 8e-6, "trainer.critic.value_clip": 0.3, "trainer.updates": 400,
        "trainer.optimizer.warmup_steps": 160, "trainer.deepspeed.ranks": 16, "reward.model": "my-team/rm-8b",
        "run.dir": "runs/ppo-8b", "data.eval.samples": 4, "trainer.deepspeed.offload_parameters": "cpu",
    },
    "verl_dapo_async.sh": {
        "trainer.filter.equal_rewards": True, "trainer.overlong.buffer_tokens": 2048, "trainer.max_staleness": 1,
        "trainer.loss.clip_high": 0.28, "cluster.placement": "separate", "trainer.deepspeed.sequence_parallel": 2,
        "trainer.kl.coefficient": 0.0, "rollout.engines": 2, "model.path": "./YOUR_MODEL", "trainer.deepspeed.ranks": 4,
    },
    "openrlhf_ppo.sh": {
        "trainer.algorithm": "ppo", "trainer.advantage.lam": 0.97, "trainer.kl.coefficient": 0.02,
        "trainer.kl.target": 0.1, "trainer.groups_per_update": 512, "trainer.minibatches": 2, "trainer.updates": 200,
        "trainer.optimizer.warmup_steps": 20, "reward.kind": "model", "trainer.optimizer.betas": [0.9, 0.95],
        "trainer.deepspeed.offload_optimizer": "cpu", "cluster.placement": "colocated", "rollout.engines": 4,
    },
    "openrlhf_reinforce.sh": {
        "trainer.advantage.estimator": "reinforce_pp_baseline", "trainer.kl.place": "loss", "trainer.max_staleness": 2,
        "trainer.kl.estimator": "k2", "reward.remote.url": "http://10.1.2.3:5000", "data.eval.samples": 8,
        "trainer.correction.high": 3, "trainer.tokens_per_microbatch": 24000, "trainer.filter.equal_rewards": True,
    },
    "openrlhf_grpo.sh": {
        "trainer.algorithm": "grpo", "trainer.loss.policy": "gspo", "trainer.kl.coefficient": 0, "trainer.updates": 100,
        "trainer.minibatches": 4, "trainer.ema_decay": 0.995, "model.lora.rank": 16, "model.dtype": "bfloat16",
        "reward.function": "your_reward:score",
    },
}  # fmt: skip
WITHOUT = {
    "trl_gsm8k.py": {"top_p", "lora_dropout", "logging_steps"},
    "trl_sorting.py": set(),
    "trl_gspo.yaml": {
        "reward_funcs", "reward_weights", "vllm_server_host", "vllm_server_port", "num_train_epochs",
    },
    "trl_cispo.json": {"sync_ref_model", "ref_model_sync_steps", "top_entropy_quantile"},
    "verl_gsm8k.sh": {"trainer.total_epochs", "trainer.project_name", "data.truncation", "$@"},
    "verl_ppo.yaml": {"actor_rollout_ref.rollout.top_k", "actor_rollout_ref.rollout.name", "defaults"},
    "verl_dapo_async.sh": {"custom_reward_function.path", "reward_model.reward_manager"},
    "openrlhf_ppo.sh": {"normalize_reward", "reward_clip_range", "ptx_coef", "critic_num_nodes"},
    "openrlhf_reinforce.sh": {"top_p", "ring_head_stride", "use_wandb"},
    "openrlhf_grpo.sh": {"remote_rm_url"},
}  # fmt: skip
UNKNOWN = {"trl_gspo.yaml": {"my_team_flag"}, "openrlhf_reinforce.sh": {"experimental_cache"}}


def names(found: Translation, outcome: str) -> set[str]:
    return {name for row in found.rows if row.outcome == outcome for name in row.names} & set(found.given)


def flat(found: Translation) -> dict[str, Any]:
    return dict(flatten(found.values))


@pytest.mark.parametrize("file", TAKEN)
def test_a_configuration_becomes_a_recipe_and_every_setting_is_accounted_for(file: str) -> None:
    found = translated(CONFIGURATIONS / file)
    assert not found.problem
    told = set().union(*(names(found, outcome) for outcome in ("taken", "same", "without", "unknown")))
    assert told == set(found.given)
    values = flat(found)
    assert {key: values.get(key) for key in TAKEN[file]} == TAKEN[file]
    assert WITHOUT[file] <= names(found, "without")
    assert names(found, "unknown") == UNKNOWN.get(file, set())
    assert all(row.why for row in found.rows if row.outcome == "without")
    assert bool([row for row in found.rows if "x your rows" in row.why]) == ("trainer.updates" not in values)


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_tables_name_keys_of_ours_and_agree_with_the_suggestions(system: str) -> None:
    table, known = read_table(system), set(known_keys(Recipe))
    keys = {key for given in table.keys.values() for key in given.split(", ")}
    keys |= {key for choices in table.values.values() for values in choices.values() for key in values} - {"why"}
    free = ("rollout.vllm.", "trainer.deepspeed.config.", "data.chat_template_arguments.")
    assert {key for key in keys if not key.startswith(free)} <= known
    for name, given in table.keys.items():
        offered = other_names().get(name, ())
        if len(offered) == 1 and "." not in name:
            assert offered[0] in given.split(", "), name


def test_the_page_has_the_settings_of_the_tables() -> None:
    page = (Path(__file__).parents[3] / "docs" / "coming-from.md").read_text()
    table = page.partition("## Settings")[2].partition("## ")[0]
    rows = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]]
        for line in table.splitlines()
        if "`" in line and "|" in line
    ]
    assert len(rows) > 15
    for *theirs, ours in rows:
        for system, name in zip(SYSTEMS, theirs, strict=True):
            assert not name or ours in str(read_table(system).key(name)).split(", "), (system, name)


@pytest.mark.parametrize(
    ("system", "text", "expected"),
    [
        ("trl", "num_generations: 4", {"trainer.algorithm": "dapo", "trainer.filter.equal_rewards": False}),
        ("trl", "num_generations: 4\nloss_type: luspo", {}),
        ("trl", "{num_generations: 8, loss_type: sapo, sapo_temperature_neg: 1.2}", {"trainer.algorithm": "sapo"}),
        ("trl", "{num_generations: 8, adam_beta2: 0.95}", {"trainer.optimizer.betas": [0.9, 0.95]}),
        ("verl", "actor_rollout_ref: {ref: {model: {path: x}}}", {"trainer.reference_path": None}),
        ("trl", "{num_generations: 8, use_vllm: false}", {"cluster.placement": "colocated", "trainer.kl.place": None}),
        ("trl", "{num_generations: 8, warmup_steps: 0.1, max_steps: 50}", {"trainer.optimizer.warmup_steps": 5}),
        ("verl", "actor_rollout_ref: {actor: {use_kl_loss: true}}", {"trainer.kl.estimator": "k3"}),
        (
            "verl",
            "{actor_rollout_ref: {rollout: {n: 4}}, algorithm: {adv_estimator: rloo}}",
            {"trainer.loss.policy": "ppo"},
        ),
        ("verl", "{actor_rollout_ref: {model: {lora_rank: 8}}, data: {train_files: [a, b]}}", {"model.lora.rank": 8}),
    ],
)
def test_defaults_of_theirs_that_differ_from_ours_are_taken(
    tmp_path: Path, system: str, text: str, expected: dict[str, Any]
) -> None:
    file = tmp_path / "configuration.yaml"
    file.write_text(text)
    found = translated(file)
    assert found.title.lower() == system
    assert {key: flat(found).get(key) for key in expected} == expected
    assert ("loss_type" in names(found, "without")) == ("luspo" in text)
    assert not found.problem


def test_a_recipe_that_our_schema_refuses_says_why(tmp_path: Path) -> None:
    file = tmp_path / "verl.yaml"
    file.write_text("{actor_rollout_ref: {}, algorithm: {adv_estimator: grpo}}")
    printed = CliRunner().invoke(app, ["translate", str(file)]).output
    assert "# the recipe is refused: group_size is 1, but advantage.estimator group_relative compares" in printed


def test_the_number_of_gpus_multiplies_the_batch_of_trl() -> None:
    found = flat(translated(CONFIGURATIONS / "trl_gsm8k.py", gpus=4))
    assert (found["trainer.groups_per_update"], found["trainer.deepspeed.ranks"]) == (8, 4)


def test_a_program_is_parsed_and_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "train.py"
    file.write_text(
        "import torch, trl\nopen('ran', 'w')\nKL = 0.25\nPROMPT = 224\nOWN = {'n': 6}\n"
        "trl.GRPOConfig('runs', beta=KL, num_generations=OWN['n'], max_completion_length=1024 - PROMPT, "
        "model_init_kwargs={'dtype': torch.float16}, gradient_checkpointing=able(), "
        "learning_rate=rate(), **more)\ntrl.GRPOTrainer(quantization_config=rate())\n"
    )
    found = translated(file)
    assert not Path("ran").exists()
    values = flat(found)
    assert (values["trainer.kl.coefficient"], values["model.dtype"]) == (0.25, "float16")
    assert values["model.gradient_checkpointing"]
    assert (values["trainer.group_size"], values["sampling.max_tokens"]) == (6, 800)
    assert names(found, "unknown") == {"GRPOConfig argument 1", "**more"}
    assert names(found, "without") == {"learning_rate", "quantization_config"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.py", "print(1)", "not recognised: it gives no settings of TRL"),
        ("a.py", "GRPOConfig(beta=1)\nGRPOConfig(beta=2)", "constructed on lines 1, 2; keep one"),
        ("a.py", "GRPOConfig(", "cannot be read"),
        ("a.yaml", "a: [", "cannot be read"),
        ("a.yaml", "model: {path: x}", "not recognised"),
        ("a.sh", "python train.py --lr 1", "not recognised"),
        ("a.sh", "openrlhf.cli.train_ppo_ray --prompt_data 'a", "cannot be read: No closing quotation"),
        ("b.yaml", "{num_generations: 0}", "a number of TRL's batches is none that trains"),
        ("b.yaml", "{num_generations: many}", "a number of TRL's batches is none that trains"),
    ],
)
def test_what_is_no_configuration_is_refused_in_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        translated(tmp_path / name)


SCRIPT = """#!/bin/bash
DIR=$(cd "$(dirname "$0")" && pwd)  # not known before it runs
CONFIG=${CONFIG:-"${DIR}/rows"}; LENGTH=$((1024 * 2))
RATE=1e-6
if [ "$1" = fast ]; then
    RATE=1e-5
    MORE="$MORE data.shuffle=$SHUFFLE"
fi
MORE="$MORE trainer.nnodes=2"
ARGS=(
    data.max_response_length=$((LENGTH + 24))
    # data.truncation=error
    data.prompt_key='question'  # of the rows
)
ARGS+=("data.train_files=['$CONFIG/a', 'b']")
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("N=${COUNT:-4}\ntrl grpo --beta $N --use_vllm --eval_strategy no > log 2>&1 &\nrm -r x\n",
         {"beta": 4, "use_vllm": True, "eval_strategy": "no"}),
        ('bash -c \\\n"pip install x \\\n&& python train_ppo_ray.py --pretrain \\"a b\\" \\\n --bf16" > ${LOG}\n',
         {"pretrain": "a b", "bf16": True}),
        ('accelerate launch --num_processes 4 train.py --lora_target_modules "q", "v" --num_generations 8',
         {"lora_target_modules": ["q", "v"], "num_generations": 8, "num_processes": 4}),
        (SCRIPT + 'python -m verl.trainer.main_ppo "${ARGS[@]}" $MORE actor_rollout_ref.actor.optim.lr=$RATE "$@"',
         {"data.max_response_length": 2072, "data.prompt_key": "question", "trainer.nnodes": 2,
          "data.train_files": Unread("['$DIR/rows/a', 'b']"), "actor_rollout_ref.actor.optim.lr": Unread("$RATE"),
          "$MORE": Unread("$MORE"), "$@": Unread("$@")}),
    ],
)  # fmt: skip
def test_the_arguments_of_a_script_are_read_as_its_shell_would(
    tmp_path: Path, text: str, expected: dict[str, Any]
) -> None:
    file = tmp_path / "run.sh"
    file.write_text(text)
    assert read_settings(file)[1] == expected


PPO_RAY, GRPO, MAIN_PPO = "python -m openrlhf.cli.train_ppo_ray", "trl grpo", "python -m verl.trainer.main_ppo"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (f"{PPO_RAY} --algo.kl.init_coef 0.02 --algo.kl.use_loss --actor.adam.lr 3e-6 --data.max_len 4096",
         {"trainer.kl.coefficient": 0.02, "trainer.kl.place": "loss", "trainer.optimizer.learning_rate": 3e-6,
          "sampling.max_tokens": 4096, "rollout.max_context_tokens": 4096, "model.dtype": "bfloat16",
          "trainer.critic.optimizer.schedule": "cosine", "trainer.critic.optimizer.betas": [0.9, 0.95]}),
        (f"{PPO_RAY} --enable_vllm_is_correction --vllm_is_truncated_threshold 0.5 5.0 --use_icepop --lora_rank 8",
         {"trainer.correction.method": "mask", "trainer.correction.low": 0.5, "trainer.correction.high": 5.0,
          "model.lora.alpha": 16}),
        (f"{PPO_RAY} --algo.advantage.is_correction_level seq --algo.advantage.is_correction_threshold 3",
         {"trainer.correction.level": "geometric", "trainer.correction.method": "mask", "trainer.correction.high": 3}),
        (f"{GRPO} --num_generations 8 --per_device_train_batch_size 4 --gradient_accumulation_steps 32 "
         "--steps_per_generation 8 --use_peft --save_strategy steps --save_steps 0.1",
         {"trainer.groups_per_update": 16, "trainer.minibatches": 1, "model.lora.rank": 16, "trainer.save_every": None,
          "data.train.prompt_column": "prompt", "model.gradient_checkpointing": True, "sampling.max_tokens": 512}),
        (f"{MAIN_PPO} actor_rollout_ref.actor.ppo_micro_batch_size=64 data.max_prompt_length=1024 "
         "data.prompt_key=messages data.max_response_length=1024 data.train_max_samples=-1 "
         "reward_model.overlong_buffer.len=512",
         {"trainer.tokens_per_microbatch": 8 * 2048, "data.train.answer_column": "reward_model.ground_truth",
          "data.train.limit": None, "trainer.overlong.buffer_tokens": 0}),
        (f"{MAIN_PPO} +reward.reward_kwargs.overlong_buffer_cfg.enable=True actor_rollout_ref.actor.clip_ratio_low=10 "
         "+reward.reward_kwargs.overlong_buffer_cfg.len=512 actor_rollout_ref.actor.policy_loss.loss_mode=cispo "
         "rollout.total_rollout_steps=102400 critic.optim.lr_warmup_steps=3",
         {"trainer.overlong.buffer_tokens": 512, "trainer.loss.clip_low": 1.0, "trainer.updates": 100,
          "trainer.critic.optimizer.warmup_steps": 12}),
    ],
)  # fmt: skip
def test_a_command_means_what_it_does_there(tmp_path: Path, command: str, expected: dict[str, Any]) -> None:
    file = tmp_path / "run.sh"
    file.write_text(command)
    values = flat(translated(file))
    assert {key: values.get(key) for key in expected} == expected


def test_the_command_prints_a_recipe_with_its_account_and_writes_a_new_file(tmp_path: Path) -> None:
    configuration, output = str(CONFIGURATIONS / "verl_gsm8k.sh"), tmp_path / "recipe.yaml"
    printed = CliRunner().invoke(app, ["translate", configuration])
    assert printed.exit_code == 0
    assert yaml.safe_load(printed.output)["trainer"]["groups_per_update"] == 512
    assert "# for you to name: trainer.updates, reward.function" in printed.output
    assert "#   trainer.total_epochs 12\n#       set trainer.updates to 12 x your rows / 512" in printed.output
    written = CliRunner().invoke(app, ["translate", configuration, "--output", str(output)])
    assert f"rlhf check {output}" in written.output
    assert load_recipe(output).recipe.trainer.group_size == 6
    again = CliRunner().invoke(app, ["translate", configuration, "--output", str(output)])
    assert isinstance(again.exception, UserError)
    assert "exists" in str(again.exception)


def test_defaults_that_nobody_writes_are_those_of_their_libraries(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "args = GRPOConfig(learning_rate=1e-5)\n"
        'GRPOTrainer(model="m", args=args, peft_config=LoraConfig(r=16, target_modules="all-linear"))\n'
    )
    values = flat(translated(program))
    assert (values["model.lora.rank"], values["model.lora.alpha"]) == (16, 8)
    assert "all-linear" not in str(values)
    assert (values["trainer.correction.method"], values["trainer.correction.level"]) == ("mask", "sequence")
    program = tmp_path / "train.sh"
    program.write_text(MAIN_PPO + " algorithm.adv_estimator=grpo")
    assert flat(translated(program))["trainer.correction.method"] == "none"


def test_a_function_of_a_package_that_is_not_here_is_told(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "from trl.rewards import accuracy_reward\n"
        'GRPOTrainer(model="m", args=GRPOConfig(), reward_funcs=accuracy_reward)\n'
    )
    printed = CliRunner().invoke(app, ["translate", str(program)]).output
    assert "# trl.rewards:accuracy_reward needs the module trl, which is not here: pip install it" in printed
    assert "reward.kind math" in printed


def test_weights_that_only_a_run_would_tell_are_left_to_the_user(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "def f(completions, **columns):\n    return [0.0] * len(completions)\n\n\n"
        "args = GRPOConfig(learning_rate=1e-5, reward_weights=weights())\n"
        'GRPOTrainer(model="m", args=args, reward_funcs=[f, f])\n'
    )
    found = translated(program)
    assert "reward_weights" in names(found, "without")
    assert flat(found)["reward.parts.f_2.function"] == "train_functions:f"
